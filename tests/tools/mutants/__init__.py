"""Some fifty ways to break the source, each of which has to be noticed by the tests of the clause that it breaks."""
