//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/examples/vad/silero"
	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
)

// program is a command that starts a replica.
type program struct {
	name           string
	command        []string
	owner, private string // flags
	loads          bool   // whether private copies are loaded from the file, not from the owner
}

// run is the measurement of one row.
type run struct {
	dir      string
	model    model
	program  program
	private  bool
	replicas int
	clients  int
	load     time.Duration
}

// clip returns a WAV file of 32 chunks, about one second.
func clip() []byte {
	var b bytes.Buffer
	c := &wav.Clip{SampleRate: silero.SampleRate, Samples: make([]int16, 32*silero.ChunkSamples)}
	for i := range c.Samples {
		c.Samples[i] = int16(i * 7919 % 4000)
	}
	_ = wav.Encode(&b, c) // memory accepts all bytes
	return b.Bytes()
}

// figures are the results of one measurement.
type figures struct {
	pss  int64         // sum of the proportional set sizes of the owner and the replicas in bytes, after requests
	rate float64       // requests answered in a second
	cpu  time.Duration // processor time of the replicas for each request
}

// measure starts the processes of a row and measures them.
func (r *run) measure(ctx context.Context) (f figures, err error) {
	dir, err := os.MkdirTemp(r.dir, "r")
	if err != nil {
		return f, err
	}
	words := append([]string{}, r.program.command...)
	pids := []int{}
	switch {
	case r.private && r.program.loads:
		words = append(words, r.program.private, r.model.file)
	default:
		socket := filepath.Join(dir, "o.sock")
		owner, stop, err := start(ctx, dir, filepath.Join(r.dir, "sharedtensor"), "serve", "--socket", socket, "m="+r.model.file)
		if err != nil {
			return f, err
		}
		defer stop()
		words = append(words, r.program.owner, socket)
		if r.private {
			words = append(words, r.program.private)
		} else {
			pids = append(pids, owner) // private copies do not need it after their start
		}
		words = append(words, "m")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return f, err
	}
	address := free.Addr().String()
	free.Close()
	front := append([]string{"-n", strconv.Itoa(r.replicas), "-dir", dir, "-listen", address, "-repeat", r.model.path, "--"}, words...)
	_, stop, err := start(ctx, dir, filepath.Join(r.dir, "replicas"), front...)
	if err != nil {
		return f, err
	}
	defer stop()
	replicas, err := r.ready(ctx, "http://"+address)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return f, fmt.Errorf("%w\n%s", err, log)
	}
	if _, err := r.requests(ctx, "http://"+address, r.load/4); err != nil { // warms up
		return f, err
	}
	before, err := cpuOf(replicas)
	if err != nil {
		return f, err
	}
	answered, err := r.requests(ctx, "http://"+address, r.load)
	if err != nil {
		return f, err
	}
	after, err := cpuOf(replicas)
	if err != nil {
		return f, err
	}
	f.rate, f.cpu = float64(answered)/r.load.Seconds(), (after-before)/time.Duration(max(answered, 1))
	for _, pid := range append(pids, replicas...) {
		bytes, err := pssOf(pid)
		if err != nil {
			return f, err
		}
		f.pss += bytes
	}
	return f, nil
}

// start starts a process whose output is in the file log. stop ends it and waits for its end.
func start(ctx context.Context, dir, name string, args ...string) (pid int, stop func(), err error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the front stops its replicas
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // its status does not matter
	}, nil
}

// ready waits until all replicas are ready and returns their process ids.
func (r *run) ready(ctx context.Context, url string) (pids []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		var all []struct {
			State string
			PID   int
		}
		if answer, err := http.Get(url + "/replicas"); err == nil {
			err = json.NewDecoder(answer.Body).Decode(&all)
			answer.Body.Close()
			if err != nil {
				return nil, err
			}
		}
		pids = nil
		for _, each := range all {
			if each.State == "ready" {
				pids = append(pids, each.PID)
			}
		}
		if len(pids) == r.replicas {
			return pids, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, fmt.Errorf("the replicas are not ready: %w", context.Cause(ctx))
}

// requests sends requests for a time and returns how many were answered within it.
func (r *run) requests(ctx context.Context, url string, load time.Duration) (n int64, err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: r.clients}}
	defer client.CloseIdleConnections()
	var group sync.WaitGroup
	var answered atomic.Int64
	failed := make(chan error, r.clients)
	begin := time.Now()
	for range r.clients {
		group.Go(func() {
			for time.Since(begin) < load && ctx.Err() == nil {
				answer, err := client.Post(url+r.model.path, "application/octet-stream", bytes.NewReader(r.model.body))
				if err == nil {
					text, readErr := io.ReadAll(answer.Body)
					answer.Body.Close()
					if err = readErr; answer.StatusCode != http.StatusOK {
						err = fmt.Errorf("%s: %s", answer.Status, text)
					}
				}
				if err != nil {
					failed <- err
					return
				}
				if time.Since(begin) < load {
					answered.Add(1)
				}
			}
		})
	}
	group.Wait()
	close(failed)
	for each := range failed {
		err = errors.Join(err, each)
	}
	return answered.Load(), err
}

// pssOf returns the proportional set size of a process: each page divided by the number of processes that map it.
func pssOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "Pss:"); found {
			kib, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/smaps_rollup has no Pss", pid)
}

// cpuOf returns the processor time that processes have used.
func cpuOf(pids []int) (sum time.Duration, err error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture of Linux that Go supports
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, field := range fields[11:13] { // utime and stime
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(ticks) * tick
		}
	}
	return sum, nil
}
