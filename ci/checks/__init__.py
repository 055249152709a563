"""The checks, one file each.

A check is a function check(root) that looks at the repository in the folder
`root` and returns what is wrong with it: a list of texts, empty if nothing is.
"""
