//go:build linux

package gpu_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// python runs a program with python3, or the interpreter that PYTHON names, and returns its output.
func python(tb testing.TB, program string, env ...string) (string, error) {
	tb.Helper()
	name := os.Getenv("PYTHON")
	if name == "" {
		name = "python3"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, "-c", program)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if said := lastLine(stderr.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said))
		}
		return "", err
	}
	return stdout.String(), nil
}
