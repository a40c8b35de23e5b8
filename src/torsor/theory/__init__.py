"""The papers' own material: coordinates, closed forms and factorizations, to read and teach from.

papers    the published numbers and figures, recomputed: `torsor papers`
study     global matrix forms and factors (Ploen & Park, Saha);  symbolic: closed forms through SymPy
fixman    floating chains: relaxed constraints (Lee, Wang & Chirikjian);  change_of_basis (Featherstone & Fijany)
"""
