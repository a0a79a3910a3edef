//go:build unix

package remotetest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Stop freezes the process. On systems that report it, Stop returns when the process is frozen. Continue resumes it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	for range 1000 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if _, state, found := bytes.Cut(text, []byte(") ")); err != nil || !found || state[0] == 'T' {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Continue resumes a frozen process.
func (p *Process) Continue() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }
