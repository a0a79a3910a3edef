package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// Each row calls its function with the same arguments in all three ways; the C functions check them.
func TestEveryRow(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	var out bytes.Buffer
	if err := run(&out, 1, built{}, nil); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if !strings.Contains(out.String(), "\n"+row.name+" ") {
			t.Errorf("no row %q in\n%s", row.name, out.String())
		}
	}
}
