package main_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stub is a replica without a model. It appends its process id to a file for each request that it receives.
func stub(dir, socket string) {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	hang := make(chan struct{})
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {
		if exists(fmt.Sprint("hang", os.Getpid())) {
			<-hang
		}
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		record, err := os.OpenFile(filepath.Join(dir, "received"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(record, os.Getpid())
		record.Close()
		switch r.URL.Path {
		case "/wait", "/wait/declared": // until the test permits answers
			for !exists("go") {
				time.Sleep(5 * time.Millisecond)
			}
		case "/poison", "/poison/declared":
			os.Exit(3)
		case "/half", "/half/declared": // the first process ends within its answer
			if !exists("half") {
				_ = os.WriteFile(filepath.Join(dir, "half"), nil, 0o600)
				w.Header().Set("Content-Length", "100")
				w.WriteHeader(http.StatusOK)
				_, _ = w.Write(make([]byte, 10))
				w.(http.Flusher).Flush()
				time.Sleep(50 * time.Millisecond)
				os.Exit(3)
			}
		case "/upgrade": // echoes one line in another protocol
			connection, both, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer connection.Close()
			fmt.Fprint(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			line, _ := both.ReadString('\n')
			fmt.Fprint(connection, line)
			return
		case "/drop": // ends the connection without an answer
			connection, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			connection.Close()
			return
		case "/child":
			child := exec.Command("sleep", "1000")
			_ = child.Start()
			fmt.Fprint(w, child.Process.Pid)
			return
		}
		fmt.Fprintf(w, "%d %s", os.Getpid(), body)
	})
	_ = http.Serve(listener, nil)
}

// stubs starts a front of stub replicas, where paths with /declared may run twice, and the directory of their files.
func stubs(t *testing.T, n int, flags ...string) (*front, string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	args := append([]string{"-n", strconv.Itoa(n), "-max-backoff", "500ms"}, flags...)
	for _, path := range []string{"/wait", "/poison", "/half"} {
		args = append(args, "-repeat", path+"/declared")
	}
	f := newFront(t, []string{stubEnv + "=" + dir}, append(args, "--", self, "{socket}")...)
	f.ready(n)
	return f, dir
}

// received returns the processes that received requests, in order.
func received(t *testing.T, dir string) (pids []int) {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join(dir, "received")) // missing before the first request
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// permit lets the requests of /wait be answered.
func permit(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
}

type result struct {
	code int
	text string
	err  error
}

// A request at a killed replica is repeated only if its path is declared. Otherwise the error is that its outcome is not known.
func TestRequestsAtAKilledReplica(t *testing.T) {
	t.Parallel()
	for _, declared := range []bool{false, true} {
		t.Run(fmt.Sprintf("declared %v", declared), func(t *testing.T) {
			t.Parallel()
			f, dir := stubs(t, 2)
			path := "/wait"
			if declared {
				path += "/declared"
			}
			answers := make(chan result, 1)
			go func() {
				code, text, err := f.post(path, []byte("x"))
				answers <- result{code, text, err}
			}()
			f.eventually("a replica has the request", func() bool { return len(received(t, dir)) == 1 })
			first := received(t, dir)[0]
			require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
			if declared {
				f.eventually("another replica has it", func() bool { return len(received(t, dir)) == 2 })
				permit(t, dir)
			}
			got := <-answers
			require.NoError(t, got.err)
			if declared {
				require.Equal(t, http.StatusOK, got.code, got.text)
				require.Equal(t, fmt.Sprintf("%d x", received(t, dir)[1]), got.text)
				require.NotEqual(t, first, received(t, dir)[1])
			} else {
				require.Equal(t, http.StatusBadGateway, got.code)
				require.Contains(t, got.text, "outcome is not known")
				require.Len(t, received(t, dir), 1, "it ran twice")
			}
			require.NotContains(t, f.ready(2), first)
		})
	}
}

// A request that kills each replica that processes it ends after as many attempts as permitted.
func TestRequestsThatKill(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 3, "-attempts", "2")
	code, text, err := f.post("/poison/declared", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, code)
	require.Contains(t, text, "2 replicas ended")
	require.Len(t, received(t, dir), 2)
	code, text, err = f.post("/poison", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, code)
	require.Contains(t, text, "declare the path with -repeat")
	require.Len(t, received(t, dir), 3)

	f.ready(3)
	code, _, err = f.post("/", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}

// Connections to replicas are reused. net/http sends some requests again after their connection has ended: the front counts them, and
// a request that may not run twice is sent once.
func TestRequestsOnReusedConnections(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 3, "-attempts", "2")
	for _, c := range []struct {
		method, path string
		sent         int
	}{
		{http.MethodGet, "/poison", 2},
		{http.MethodPost, "/poison", 1},
		{http.MethodPost, "/drop", 1},
	} {
		f.ready(3) // the connections of health requests exist
		before := len(received(t, dir))
		request, err := http.NewRequest(c.method, f.url+c.path, nil)
		require.NoError(t, err)
		request.Header.Set("Idempotency-Key", "1")
		answer, err := (&http.Client{Timeout: 30 * time.Second}).Do(request)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusBadGateway, answer.StatusCode)
		require.Len(t, received(t, dir), before+c.sent, c)
	}
}

// A replica may end within its answer. A declared request is repeated, and the client sees one answer. Another one is cut off, and
// is not complete for the client.
func TestRequestsWithHalfAnAnswer(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 2)
	code, text, err := f.post("/half/declared", []byte("y"))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, fmt.Sprintf("%d y", received(t, dir)[1]), text)

	require.NoError(t, os.Remove(filepath.Join(dir, "half")))
	_, _, err = f.post("/half", nil)
	require.Error(t, err)
	require.Len(t, received(t, dir), 3)
}

// Without a replica that is ready, requests wait for one.
func TestRequestsWaitForAReplica(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 2)
	for _, pid := range f.ready(2) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	permit(t, dir)
	code, text, err := f.post("/wait/declared", []byte("z"))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code, text)
}

// A connection that changes its protocol, such as to WebSocket, passes through.
func TestRequestsThatUpgrade(t *testing.T) {
	t.Parallel()
	f, _ := stubs(t, 1)
	connection, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	defer connection.Close()
	require.NoError(t, connection.SetDeadline(time.Now().Add(30*time.Second)))
	fmt.Fprint(connection, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(connection)
	answer, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode)
	fmt.Fprint(connection, "hello\n")
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
}

// Budgets of requests and of their bodies.
func TestRequestsOverTheLimits(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 1, "-max-requests", "2", "-max-body", "1000", "-wait", "300ms")
	code, _, err := f.post("/", make([]byte, 1001))
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, code)
	require.Empty(t, received(t, dir))
	answers := make(chan result, 2)
	for range 2 {
		go func() {
			code, text, err := f.post("/wait", make([]byte, 1000))
			answers <- result{code, text, err}
		}()
	}
	f.eventually("two requests run", func() bool { return len(received(t, dir)) == 2 })
	code, text, err := f.post("/", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, text, "2 requests are in flight")
	permit(t, dir)
	for range 2 {
		require.Equal(t, http.StatusOK, (<-answers).code)
	}
}

// A replica that does not answer health requests is killed and restarted. What a replica has started ends with it.
func TestReplicasThatHang(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 2, "-health-timeout", "200ms")
	code, text, err := f.post("/child", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	child, err := strconv.Atoi(text)
	require.NoError(t, err)
	require.True(t, running(child))
	parent := received(t, dir)[0]
	require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint("hang", parent)), nil, 0o600))
	f.eventually("it is killed", func() bool { return !running(parent) })
	f.eventually("its child is killed", func() bool { return !running(child) })
	require.NotContains(t, f.ready(2), parent)
	require.Contains(t, f.text(), "does not answer")
}

// A program that ends at once is started again after pauses that double.
func TestReplicasThatEndAtOnce(t *testing.T) {
	t.Parallel()
	f := newFront(t, nil, "-n", "1", "-wait", "200ms", "-max-backoff", "300ms", "--", "false", "{socket}")
	f.eventually("it was started five times", func() bool { return strings.Count(f.text(), "starts again") >= 5 })
	var pauses []string
	for line := range strings.Lines(f.text()) {
		if _, pause, found := strings.Cut(line, "starts again in "); found {
			pauses = append(pauses, strings.TrimSpace(pause))
		}
	}
	require.Equal(t, []string{"100ms", "200ms", "300ms", "300ms"}, pauses[:4])
	require.Contains(t, f.text(), "exit status 1")
	code, text, err := f.post("/", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, text, "no replica is ready")
}

// Replicas survive their front, and the next front of the directory uses them. A second front at the same time is refused.
// SIGTERM ends the requests in flight and the replicas.
func TestFrontsOfOneDirectory(t *testing.T) {
	t.Parallel()
	f, dir := stubs(t, 2)
	before := f.ready(2)
	second := exec.Command(program(t, "replicas"), "-dir", f.dir, "-listen", "127.0.0.1:0", "--", "false")
	out, err := second.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "another front uses "+f.dir)

	require.NoError(t, f.process.Process.Kill())
	<-f.ended
	f.start()
	require.Equal(t, before, f.ready(2))
	require.NoError(t, syscall.Kill(before[0], syscall.SIGKILL))
	f.eventually("the other is restarted", func() bool {
		all := f.replicas()
		return len(all) == 2 && all[0].State == "ready" && all[0].PID != before[0] && all[1].PID == before[1]
	})

	answers := make(chan result, 1)
	go func() {
		code, text, err := f.post("/wait", nil)
		answers <- result{code, text, err}
	}()
	f.eventually("a request runs", func() bool { return len(received(t, dir)) == 1 })
	pids := f.ready(2)
	require.NoError(t, f.process.Process.Signal(syscall.SIGTERM))
	time.Sleep(100 * time.Millisecond)
	permit(t, dir)
	require.Equal(t, http.StatusOK, (<-answers).code)
	<-f.ended
	require.Zero(t, f.process.ProcessState.ExitCode())
	for _, pid := range pids {
		require.False(t, running(pid))
	}
	f.start() // the end of the test stops it
}

// A front with fewer replicas than the one before stops the surplus, and uses the rest.
func TestFrontsWithFewerReplicas(t *testing.T) {
	t.Parallel()
	f, _ := stubs(t, 3)
	before := f.ready(3)
	require.NoError(t, f.process.Process.Kill())
	<-f.ended
	f.args = append([]string{}, f.args...)
	f.args[slices.Index(f.args, "3")] = "1"
	f.start()
	require.Equal(t, before[:1], f.ready(1))
	require.False(t, running(before[1]))
	require.False(t, running(before[2]))
}
