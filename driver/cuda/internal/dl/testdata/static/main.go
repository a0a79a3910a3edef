// Command static prints the error of opening the library in its first argument.
package main

import "C" // links the C library

import (
	"fmt"
	"os"

	"github.com/sharedtensor/sharedtensor/driver/cuda/internal/dl"
)

func main() {
	_, _, err := dl.Open(&dl.Config{Title: "test"}, os.Args[1])
	fmt.Print(err)
}
