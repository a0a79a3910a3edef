package operation

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// logEnd is a standard error of a process.
type logEnd struct {
	name string
	// make changes the command, and returns what happens after it serves.
	make func(t *testing.T, cmd *exec.Cmd) (later func())
	lost bool // lines are lost
}

// logEnds are the ways in which a log is not read.
func logEnds() []logEnd {
	pipe := func(t *testing.T, cmd *exec.Cmd) (r, w *os.File) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd.Stdout, cmd.Stderr = w, w
		return r, w
	}
	return []logEnd{
		{"the reader ends", func(t *testing.T, cmd *exec.Cmd) func() {
			r, w := pipe(t, cmd)
			return func() { r.Close(); w.Close() }
		}, true},
		{"the reader stops", func(t *testing.T, cmd *exec.Cmd) func() {
			r, w := pipe(t, cmd)
			t.Cleanup(func() { r.Close(); w.Close() })
			return func() { // the pipe is full
				fd := int(w.Fd())
				require.NoError(t, syscall.SetNonblock(fd, true))
				for {
					if _, err := syscall.Write(fd, make([]byte, 4096)); err != nil {
						break
					}
				}
				require.NoError(t, syscall.SetNonblock(fd, false)) // the open file is shared with the process
			}
		}, false},
		{"the descriptors are closed", func(_ *testing.T, cmd *exec.Cmd) func() {
			cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" 0<&- 1>&- 2>&-`}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
			cmd.Path, _ = exec.LookPath("sh")
			return func() {}
		}, false},
		{"the disk is full", func(t *testing.T, cmd *exec.Cmd) func() {
			f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			require.NoError(t, err)
			cmd.Stdout, cmd.Stderr = f, f
			return func() { f.Close() }
		}, true},
	}
}

// lostLines returns the lines of a log that an owner reports as lost.
func (p *place) lostLines(limit string) int {
	p.t.Helper()
	m := regexp.MustCompile(`sharedtensor_limit_refused_total\{[^}]*limit="` + limit + `"[^}]*\} (\d+)`).FindStringSubmatch(p.must("metrics"))
	require.NotNil(p.t, m, "a metric of %s", limit)
	n, err := strconv.Atoi(m[1])
	require.NoError(p.t, err)
	return n
}

// An owner serves on, and stops within its grace period, if its log is not read.
func TestOwnerWithoutReaderOfLog(t *testing.T) {
	for _, end := range logEnds() {
		t.Run(end.name, func(t *testing.T) {
			p := newPlace(t)
			path := p.model("m.safetensors", 1<<16)
			cmd := exec.Command(program, "serve", "--socket", p.socket(), "--grace", "1s")
			later := end.make(t, cmd)
			owner := p.start(cmd)
			p.serving()
			later()
			begin := time.Now()
			for n := range 20 {
				p.must("publish", fmt.Sprintf("m%d=%s", n, path))
			}
			require.Less(t, time.Since(begin), 15*time.Second)
			if end.lost {
				p.eventually("lost lines are counted", func() bool { return p.lostLines("log_lines") > 0 })
			}
			owner.stop(8 * time.Second)
			require.Zero(t, owner.cmd.ProcessState.ExitCode(), owner.cmd.ProcessState)
		})
	}
}

// A keeper serves on if its log is not read.
func TestKeeperWithoutReaderOfLog(t *testing.T) {
	for _, end := range logEnds() {
		t.Run(end.name, func(t *testing.T) {
			p := newPlace(t)
			path := p.model("m.safetensors", 1<<16)
			cmd := exec.Command(program, "keep", "--log", "--socket", p.socket()+".keep")
			later := end.make(t, cmd)
			keeper := p.start(cmd)
			p.eventually("the keeper listens", func() bool { _, err := os.Stat(p.socket() + ".keep"); return err == nil })
			later()
			for range 20 { // each is a line of the log
				c, err := net.Dial("unix", p.socket()+".keep")
				require.NoError(t, err)
				_, err = c.Write(make([]byte, 64))
				require.NoError(t, err)
				_, _ = io.ReadAll(c) // until the keeper closes it
				require.NoError(t, c.Close())
			}
			owner := p.serve("--keep", "m="+path)
			p.eventually("the model is served", func() bool { return strings.Contains(p.must("ls"), "m") })
			owner.stop(5 * time.Second)
			require.True(t, keeper.running())
			owner = p.serve("--keep")
			require.Contains(t, p.must("ls"), "m", "the keeper has the model")
			owner.stop(5 * time.Second)
			keeper.stop(5 * time.Second)
		})
	}
}

// buildGateway builds the gateway.
func buildGateway(t *testing.T) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(program), "sharedtensor-gateway")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	out, err := exec.Command("go", "build", "-C", "../../../../endpoint/remote", "-tags", "nocuda", "-o", path, "./cmd/sharedtensor-gateway").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// A gateway serves on, opens its files again at SIGHUP, and stops if its log is not read.
func TestGatewayWithoutReaderOfLog(t *testing.T) {
	p := newPlace(t)
	gateway := buildGateway(t)
	p.serve()
	for _, end := range logEnds() {
		t.Run(end.name, func(t *testing.T) {
			q := &place{t, p.dir}
			access := filepath.Join(t.TempDir(), "access.jsonl")
			cmd := exec.Command(gateway, "serve", "--owner", p.socket(), "--http", "127.0.0.1:25371", "--grpc", "off", "--nats", "off", "--log-level", "debug",
				"--access-log", access, "--lame-duck", "0s", "--drain", "1s")
			later := end.make(t, cmd)
			g := q.start(cmd)
			client := http.Client{Timeout: 5 * time.Second}
			get := func(path string) error {
				answer, err := client.Get("http://127.0.0.1:25371" + path)
				if err != nil {
					return err
				}
				return answer.Body.Close()
			}
			q.eventually("the gateway answers", func() bool { return get("/healthz") == nil })
			later()
			for range 50 {
				require.NoError(t, get("/v1/models"))
			}
			require.NoError(t, os.Rename(access, access+".1"))
			require.NoError(t, g.cmd.Process.Signal(syscall.SIGHUP))
			q.eventually("the file is opened again", func() bool {
				require.NoError(t, get("/v1/models"))
				info, err := os.Stat(access)
				return err == nil && info.Size() > 0
			})
			require.True(t, g.running())
			g.stop(8 * time.Second)
			require.Zero(t, g.cmd.ProcessState.ExitCode(), g.cmd.ProcessState)
		})
	}
}

// smallDisk mounts a file system of 64 KiB.
func (p *place) smallDisk() string {
	p.t.Helper()
	dir := p.path("disk")
	require.NoError(p.t, os.Mkdir(dir, 0o700))
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700")
	drivertest.Needs(p.t, "mount", err == nil, fmt.Sprintf("this machine mounts no tmpfs: %v", err))
	p.t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill leaves a number of free bytes on a disk.
func fill(t *testing.T, dir string, free int) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	require.NoError(t, err)
	for {
		if _, err := f.Write(make([]byte, 1024)); err != nil {
			break
		}
	}
	info, err := f.Stat()
	require.NoError(t, err)
	require.NoError(t, f.Truncate(info.Size()-int64(free)))
	require.NoError(t, f.Close())
	return func() { require.NoError(t, os.Remove(path)) }
}

// records returns the lines of an audit file with a change. Each line must be a whole record.
func records(t *testing.T, path, change string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r struct{ Change, State string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r), "%q", lines.Text())
		if r.Change == change && r.State == "" {
			n++
		}
	}
	return n
}

// On a full disk, each change without a record is counted, or refused with --require-audit, and each record is a whole line.
func TestAuditOnFullDisk(t *testing.T) {
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprintf("required %v", required), func(t *testing.T) {
			p := newPlace(t)
			disk := p.smallDisk()
			path, audit := p.model("m.safetensors", 1<<16), filepath.Join(disk, "audit.jsonl")
			owner := p.serve("--audit", audit, fmt.Sprintf("--require-audit=%v", required))
			p.must("publish", "before="+path)
			remove := fill(t, disk, 0)
			done, refused := 1, 0
			for n := range 40 { // until the last page of the file is full
				out, err := p.try("publish", fmt.Sprintf("full%d=%s", n, path))
				if err == nil {
					done++
					continue
				}
				require.True(t, required, out)
				require.Contains(t, out, "audit log cannot be written")
				refused++
			}
			written := records(t, audit, "publish")
			lost := p.lostLines("audit_lines")
			require.Contains(t, owner.out.String(), "changes are missing in the audit log")
			if required {
				require.Positive(t, refused)
				require.InDelta(t, done, written, 1, "the line after a change may be lost, the one before is there")
			} else {
				require.Equal(t, done, written+lost)
			}
			remove()
			p.must("publish", "after="+path)
			require.Equal(t, written+1, records(t, audit, "publish"))

			// Rotation.
			require.NoError(t, os.Rename(audit, audit+".1"))
			require.NoError(t, owner.cmd.Process.Signal(syscall.SIGHUP))
			p.eventually("the file is opened again", func() bool { _, err := os.Stat(audit); return err == nil })
			p.must("withdraw", "after")
			require.Equal(t, 1, records(t, audit, "withdraw"))
		})
	}
}

// With --require-audit, the gateway refuses a change that it cannot record. Without it, it counts the lost records.
func TestGatewayAuditOnFullDisk(t *testing.T) {
	gateway := buildGateway(t)
	for _, required := range []bool{false, true} {
		t.Run(fmt.Sprintf("required %v", required), func(t *testing.T) {
			p := newPlace(t)
			disk := p.smallDisk()
			path, audit := p.model("m.safetensors", 1<<10), filepath.Join(disk, "audit.jsonl")
			p.serve()
			const models = 40
			for n := range models {
				p.must("publish", fmt.Sprintf("m%d=%s", n, path))
			}
			cmd := exec.Command(gateway, "serve", "--owner", p.socket(), "--http", "127.0.0.1:25372", "--grpc", "off", "--nats", "off",
				"--audit", audit, fmt.Sprintf("--require-audit=%v", required), "--lame-duck", "0s", "--drain", "1s")
			g := p.start(cmd)
			client := http.Client{Timeout: 5 * time.Second}
			request := func(method, path string) (int, string) {
				r, err := http.NewRequest(method, "http://127.0.0.1:25372"+path, nil)
				require.NoError(t, err)
				answer, err := client.Do(r)
				if err != nil {
					return 0, err.Error()
				}
				defer answer.Body.Close()
				text, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				return answer.StatusCode, string(text)
			}
			p.eventually("the gateway is ready", func() bool { code, _ := request("GET", "/readyz"); return code == http.StatusOK })
			code, text := request("DELETE", "/v1/models/m0")
			require.Equal(t, http.StatusNoContent, code, text)
			remove := fill(t, disk, 0)
			done, refused := 1, 0
			for n := range models - 2 { // until the last page of the file is full
				code, text := request("DELETE", fmt.Sprintf("/v1/models/m%d", n+1))
				if code == http.StatusNoContent {
					done++
					continue
				}
				require.True(t, required, text)
				require.Equal(t, http.StatusServiceUnavailable, code, text)
				require.Contains(t, text, "audit log cannot be written")
				refused++
			}
			written := records(t, audit, "withdraw")
			p.eventually("the log says so", func() bool { return strings.Contains(g.out.String(), "records are missing in a log file") })
			if required {
				require.Positive(t, refused)
				require.InDelta(t, done, written, 1, "the line after a change may be lost, the one before is there")
			} else {
				require.Less(t, written, done)
			}
			remove()
			code, text = request("DELETE", fmt.Sprintf("/v1/models/m%d", models-1))
			require.Equal(t, http.StatusNoContent, code, text)
			require.Equal(t, written+1, records(t, audit, "withdraw"))
			g.stop(8 * time.Second)
		})
	}
}
