"""What a certificate says."""

from broker.transport.openssl cimport X509

cdef object certificate_of(X509* certificate)        # -> broker.transport.facts.Certificate
