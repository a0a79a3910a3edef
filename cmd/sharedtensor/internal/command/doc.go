// Package command contains the commands of the program sharedtensor, one file for each command. Commands with much
// output have an additional file for it.
package command
