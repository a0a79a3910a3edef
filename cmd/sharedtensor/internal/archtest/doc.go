// Package archtest holds the repository to its floor plan: who may import whom, where unsafe code lives, that everything
// exported is documented, and that files stay small. It reads source files of every operating system and build tag, not
// one build of them, and its test runs it on this repository.
//
// The import table in table.go is the one in .github/CONTRIBUTING.md; .golangci.yml repeats it for editors, and a test
// keeps the two equal.
package archtest
