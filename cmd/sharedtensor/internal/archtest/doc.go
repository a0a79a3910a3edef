// Package archtest holds the repository to its floor plan: which package may import which, where unsafe code lives,
// that everything exported is documented, and that files stay small. It reads source files of every operating system
// and build tag, not one build of them, and its test runs it on this repository.
//
// The table in table.go is the only source of the import rules: what golangci-lint checks (.golangci.yml) and what
// people read (.github/CONTRIBUTING.md) is written from it, and a test fails where one of them differs.
package archtest
