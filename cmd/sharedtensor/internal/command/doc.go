// Package command has the commands of the program sharedtensor, one file a command; a command with much to show has a
// file for that too.
package command
