package archtest

import (
	"fmt"
	"strings"
)

// Depguard returns the table as rules of golangci-lint's depguard, indented as in .golangci.yml. Rows that may import
// every package of the module allow the module as a whole. Test files are checked by this package's test only, because
// depguard has no notion of floors.
func Depguard() string {
	var b strings.Builder
	for _, r := range Table {
		tree, isTree := strings.CutSuffix(r.Package, "/...")
		glob := "*.go"
		if isTree {
			glob = "**/*.go"
		}
		fmt.Fprintf(&b, "        %s:\n", strings.ReplaceAll(tree, "/", "-"))
		fmt.Fprintf(&b, "          list-mode: strict\n")
		fmt.Fprintf(&b, "          files: [\"**/%s/%s\", \"!$test\"]\n", tree, glob)
		fmt.Fprintf(&b, "          allow:\n            - $gostd\n")
		for _, p := range r.Ours {
			if p == everything {
				fmt.Fprintf(&b, "            - %s\n", Module)
				continue
			}
			fmt.Fprintf(&b, "            - %s/%s$\n", Module, p)
		}
		if !isTree {
			house, _, _ := strings.Cut(tree, "/internal/") // the tree in which internal packages may import each other
			fmt.Fprintf(&b, "            - %s/%s/internal\n", Module, house)
		}
		for _, m := range r.Theirs {
			fmt.Fprintf(&b, "            - %s\n", m)
		}
	}
	return b.String()
}
