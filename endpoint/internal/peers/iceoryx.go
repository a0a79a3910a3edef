package main

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// iceoryxSource is a Rust program that makes the same calls with iceoryx2. It is built if cargo is installed.
//
//go:embed iceoryx2/Cargo.toml iceoryx2/Cargo.lock iceoryx2/src/main.rs
var iceoryxSource embed.FS

// iceoryx is the built program. If path is empty, why is the reason.
type iceoryx struct {
	path string
	why  string
}

// buildIceoryx builds the program in the user's cache directory, where later runs find it.
func buildIceoryx(ctx context.Context) iceoryx {
	path, err := compileIceoryx(ctx)
	if err != nil {
		return iceoryx{why: "iceoryx2 is not measured: " + err.Error()}
	}
	return iceoryx{path: path}
}

func compileIceoryx(ctx context.Context) (string, error) {
	cargo, err := exec.LookPath("cargo")
	if err != nil {
		return "", errors.New("cargo is not installed (https://rustup.rs)")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sharedtensor-peers")
	for _, name := range []string{"iceoryx2/Cargo.toml", "iceoryx2/Cargo.lock", "iceoryx2/src/main.rs"} {
		if err := unpack(dir, name); err != nil {
			return "", err
		}
	}
	build := exec.CommandContext(ctx, cargo, "build", "--release", "--locked", "--quiet",
		"--manifest-path", filepath.Join(dir, "iceoryx2", "Cargo.toml"), "--target-dir", filepath.Join(dir, "target"))
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cargo build: %w: %s", err, lastLine(out))
	}
	return filepath.Join(dir, "target", "release", "iceoryx2-peer"), nil
}

// unpack writes one source file if its content differs. cargo rebuilds only changed files.
func unpack(dir, name string) error {
	text, err := iceoryxSource.ReadFile(name)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, filepath.FromSlash(name))
	if old, err := os.ReadFile(path); err == nil && string(old) == string(text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

func lastLine(out []byte) string {
	text := strings.TrimSpace(string(out))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// turn runs the program for one case and returns the durations of n calls, after n/10 calls to warm up. Its two
// processes spin, so they run only during the measurement.
func (x iceoryx) turn(ctx context.Context, n int, args ...string) (samples, error) {
	cmd := exec.CommandContext(ctx, x.path, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(out, 1<<20)
	var turn samples
	for _, n := range []int{max(n/10, 2), n} {
		if turn, err = askIceoryx(in, lines, n); err != nil {
			break
		}
	}
	in.Close()
	return turn, errors.Join(err, cmd.Wait())
}

func askIceoryx(in io.Writer, lines *bufio.Reader, n int) (samples, error) {
	if _, err := fmt.Fprintln(in, n); err != nil {
		return nil, err
	}
	line, err := lines.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("iceoryx2: %w", err)
	}
	var turn samples
	for _, field := range strings.Fields(line) {
		ns, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("iceoryx2: %w", err)
		}
		turn = append(turn, time.Duration(ns))
	}
	if len(turn) != n {
		return nil, fmt.Errorf("iceoryx2: %d figures, not %d", len(turn), n)
	}
	return turn, nil
}
