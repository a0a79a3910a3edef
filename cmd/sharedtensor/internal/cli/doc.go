// Package cli contains what the commands share: exit statuses, errors, the flags that select an owner, and device
// names.
package cli
