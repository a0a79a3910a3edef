// Package term formats output for people: tables, sizes, times and progress that fit a terminal. It makes text from
// peers and files safe to print. It also writes JSON for programs.
package term
