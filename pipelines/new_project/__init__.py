"""Makes the folder of a new project: looks at the user's data, guesses a configuration, copies the template."""
