//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a running replica: a child of this front, or of an earlier one that was killed. It leads a session, which
// contains the processes that it starts.
type process struct {
	pid   int
	ended chan struct{} // closed when it has ended
	how   string        // set before ended is closed
}

// start starts a program as the leader of a new session, which survives this process.
func start(words []string, mark string) (*process, error) {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), mark)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		err := cmd.Wait()
		p.how = outcome(cmd.ProcessState, err)
	}()
	return p, nil
}

// adopt returns the process that an earlier front has started with the mark, or nil. It kills further ones.
func adopt(mark string) (*process, error) {
	found, err := marked(func(variable string) bool { return variable == mark })
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, p := range found[1:] {
		p.stop(false, 0)
	}
	return found[0], nil
}

// marked returns the processes of this user that lead a session and have a fitting environment variable.
func marked(fits func(variable string) bool) (found []*process, err error) {
	entries, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	for _, file := range entries {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		before, ok := statOf(pid)
		environ, err := os.ReadFile(file) // fails for processes of other users
		after, still := statOf(pid)
		if err != nil || !ok || !still || before != after || after.session != pid || !slices.ContainsFunc(strings.Split(string(environ), "\x00"), fits) {
			continue
		}
		p := &process{pid: pid, ended: make(chan struct{}), how: "its front had been killed, so its status is not known"}
		go p.await(after)
		found = append(found, p)
	}
	return found, nil
}

// await closes ended when the process that is not a child has ended.
func (p *process) await(is stat) {
	defer close(p.ended)
	for {
		if now, ok := statOf(p.pid); !ok || now != is {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends the process with its session's first group, and returns when it has ended. A gentle stop sends SIGTERM first.
func (p *process) stop(gentle bool, grace time.Duration) {
	if gentle {
		_ = syscall.Kill(p.pid, syscall.SIGTERM) // it may have ended
		select {
		case <-p.ended:
		case <-time.After(grace):
		}
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // also what it started
	<-p.ended
}

// stat identifies a process during the uptime of the host.
type stat struct {
	session int
	start   string // in clock ticks since the host started
}

// statOf returns the identity of a process that runs. It is not found if it is a zombie.
func statOf(pid int) (stat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	end := bytes.LastIndexByte(text, ')') // the name may contain anything
	fields := strings.Fields(string(text[end+1:]))
	if end < 0 || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return stat{}, false
	}
	session, err := strconv.Atoi(fields[3])
	return stat{session, fields[19]}, err == nil
}
