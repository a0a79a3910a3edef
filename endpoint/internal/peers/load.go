package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/module"
)

// streamerName is the rival for a cold load, a Python package. It is measured if python3 can import it.
const streamerName = "runai-model-streamer"

// streamerScript loads a file as in the streamer's documentation and prints the duration in nanoseconds.
const streamerScript = `
import sys, time
from runai_model_streamer import SafetensorsStreamer
start = time.monotonic_ns()
with SafetensorsStreamer() as streamer:
    streamer.stream_file(sys.argv[1])
    for name, tensor in streamer.get_tensors():
        tensor.view(-1)[:1].clone()
print(time.monotonic_ns() - start)
`

// allLoads compares loading a file from the page cache with a plain read, and from the disk with the streamer.
func (b *bench) allLoads(ctx context.Context, progress func(string)) error {
	p := b.plan.models
	progress("loading " + byteSize(p.file))
	path := filepath.Join(b.dir, "m.safetensors")
	if err := module.SynthesizeFile(path, module.Synthetic{Tensors: 200, Bytes: p.file}); err != nil {
		return err
	}
	defer os.Remove(path)
	if !b.plan.rivals {
		b.models.noStreamer = streamerName + " is not measured in a quick run"
	}
	for range min(b.plan.rounds, p.loads) {
		if err := b.loadTurn(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) loadTurn(ctx context.Context, path string) error {
	m := &b.models
	if _, err := readPlain(path); err != nil { // fills the page cache
		return err
	}
	for _, one := range []struct {
		load func() (time.Duration, error)
		cold bool
		to   *[]samples
	}{
		{func() (time.Duration, error) { return readPlain(path) }, false, &m.plain},
		{func() (time.Duration, error) { return b.loadOurs(ctx, path) }, false, &m.warm},
		{func() (time.Duration, error) { return b.loadOurs(ctx, path) }, true, &m.cold},
		{func() (time.Duration, error) { return b.loadStreamer(ctx, path) }, true, &m.coldStreamer},
	} {
		if one.cold {
			if err := dropCache(path); err != nil {
				return err
			}
		}
		took, err := one.load()
		if err != nil {
			return err
		}
		if took > 0 {
			*one.to = append(*one.to, samples{took})
		}
	}
	return nil
}

// loadOurs loads the file into shareable memory.
func (b *bench) loadOurs(ctx context.Context, path string) (time.Duration, error) {
	start := time.Now()
	sd, err := module.Load(ctx, b.memory.dev, path, module.LoadOptions{})
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, sd.Close()
}

// readPlain reads the file into fresh memory.
func readPlain(path string) (time.Duration, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	// A mapping is fresh each time and is freed at once.
	data, err := unix.Mmap(-1, 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, err
	}
	const piece = 4 << 20
	for at := 0; at < len(data) && err == nil; at += piece {
		_, err = io.ReadFull(f, data[at:min(at+piece, len(data))])
	}
	took := time.Since(start)
	return took, errors.Join(err, unix.Munmap(data))
}

// loadStreamer loads the file with the streamer. It returns 0 if the streamer is not installed.
func (b *bench) loadStreamer(ctx context.Context, path string) (time.Duration, error) {
	if b.models.noStreamer != "" {
		return 0, nil
	}
	python, err := exec.LookPath("python3")
	if err == nil {
		err = exec.CommandContext(ctx, python, "-c", "import runai_model_streamer, torch").Run()
	}
	if err != nil {
		b.models.noStreamer = streamerName + " is not measured: python3 cannot import it (pip install runai-model-streamer)"
		return 0, nil
	}
	cmd := exec.CommandContext(ctx, python, "-c", streamerScript, path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", streamerName, err)
	}
	fields := strings.Fields(string(out))
	if len(fields) == 0 {
		return 0, fmt.Errorf("%s printed nothing", streamerName)
	}
	ns, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	return time.Duration(ns), err
}

// dropCache evicts a file from the page cache.
func dropCache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	return os.NewSyscallError("posix_fadvise", unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}
