// Package term writes for people: tables, sizes, times and progress that fit a terminal, and texts of peers and files
// that a terminal will not obey; and JSON for machines.
package term
