// Package cli is what the commands have in common: exit statuses and errors, the flags that say which owner is meant,
// and devices by their names.
package cli
