// Package archtest checks the structure of the repository: which package may import which, which files use unsafe, that
// exported identifiers are documented, and that files stay small. It reads source files of all operating systems and
// build tags. Its test runs the checks on this repository.
//
// The table in table.go is the only source of the import rules. The list in the contributing guide
// (.github/CONTRIBUTING.md) is generated from it, and a test fails if it differs.
package archtest
