"""What to compute: each file declares ops by their torch references, with the inputs on which providers must agree."""
