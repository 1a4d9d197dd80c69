//go:build !failpoints

// Package failpoint lets tests kill a real process at a named place. In an ordinary build it does nothing at all; the
// tests build the program with the tag failpoints.
package failpoint

// Hit marks a place at which a process may die.
func Hit(string) {}
