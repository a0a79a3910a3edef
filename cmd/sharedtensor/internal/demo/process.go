package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// process is the director's view of another process. It is used by one goroutine at a time.
type process struct {
	role   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	stderr bytes.Buffer // valid after its end
	ended  bool
}

// startProcess starts command with role and dir appended; it must run [Work]. The process is killed when ctx ends. The
// caller ends it with end or kill.
func startProcess(ctx context.Context, command []string, role, dir string) (*process, error) {
	words := append(append([]string{}, command...), strings.ReplaceAll(role, " ", "-"), dir)
	p := &process{role: role, cmd: exec.CommandContext(ctx, words[0], words[1:]...)}
	p.cmd.Stderr = &p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	p.in, p.out = in, json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil { // closes the pipes on failure
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ask sends a request and waits for the answer. Errors name the process.
func (p *process) ask(r request) (answer reply, err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return reply{}, err
	}
	if _, err = p.in.Write(append(line, '\n')); err == nil {
		err = p.out.Decode(&answer)
	}
	if err != nil {
		err = errors.Join(p.kill(), fmt.Errorf("%s, pid %d, ended when asked to %s (%v)", p.role, p.pid(), r.Op, p.cmd.ProcessState))
		if text := strings.TrimSpace(p.stderr.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return reply{}, err
	}
	if answer.Error != "" {
		return reply{}, fmt.Errorf("%s, pid %d: %s", p.role, p.pid(), answer.Error)
	}
	return answer, nil
}

// kill sends SIGKILL if the process is running, and waits for its end.
func (p *process) kill() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.cmd.Process.Kill() // best effort: it may have ended already
	if err := p.cmd.Wait(); p.cmd.ProcessState == nil {
		return fmt.Errorf("wait for %s: %w", p.role, err)
	}
	return nil
}

// end closes the standard input of the process, which makes it clean up, and waits until it has exited. It returns an
// error if the exit status is not 0.
func (p *process) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.in.Close() // best effort: it may have ended already
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s, pid %d: %w: %s", p.role, p.pid(), err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

// memfdPath begins the path of mappings that package host allocates.
const memfdPath = "/memfd:sharedtensor"

// modelMemory returns the memory of the model in the processes together, each page divided by the number of processes
// that map it, and the number of kernel memory objects that hold it. It fails if the system does not report it.
func modelMemory(pids []int) (pss int64, objects int, err error) {
	found := map[string]bool{}
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
		if err != nil {
			return 0, 0, err
		}
		n, err := parseSmaps(f, found)
		if err = errors.Join(err, f.Close()); err != nil {
			return 0, 0, err
		}
		pss += n
	}
	return pss, len(found), nil
}

// parseSmaps parses smaps (proc_pid_smaps(5)): for each mapping, one line as in /proc/PID/maps, followed by lines of
// the form "Key: value". It returns the sum of Pss of the model's mappings and adds their objects, as device:inode.
func parseSmaps(r io.Reader, objects map[string]bool) (pss int64, err error) {
	ours, reported := false, false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case !strings.HasSuffix(fields[0], ":"):
			if ours = len(fields) >= 6 && strings.HasPrefix(fields[5], memfdPath); ours {
				objects[fields[3]+":"+fields[4]] = true
			}
		case fields[0] == "Pss:":
			reported = true
			if !ours {
				continue
			}
			if len(fields) != 3 || fields[2] != "kB" {
				return 0, fmt.Errorf("line %q of smaps: want a number of kB", lines.Text())
			}
			n, err := strconv.ParseUint(fields[1], 10, 43)
			if err != nil {
				return 0, fmt.Errorf("line %q of smaps: %w", lines.Text(), err)
			}
			pss += int64(n) << 10
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !reported {
		return 0, errors.New("this system does not report the memory shares of processes")
	}
	return pss, nil
}
