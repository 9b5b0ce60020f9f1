"""What a certificate says."""

from broker.transport.openssl cimport X509

cdef object certificate_of(X509* certificate)        # -> broker.transport.facts.Certificate
cdef tuple server_names(X509* certificate)           # host names and IP addresses that a server's is for
