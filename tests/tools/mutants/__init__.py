"""Some fifty ways to break the source, one at a time; each has to be noticed by the tests of the clause that it breaks."""
