package main

import (
	"os"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/command"
)

func main() {
	os.Exit(command.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
