// Package browsertest controls a headless Chromium over the pipe of its debugging protocol, for tests of pages.
package browsertest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
)

// patience is the time limit of a step. A browser on a busy machine is slow.
const patience = 30 * time.Second

// Page is one page in a separate browser. It is not safe for concurrent use.
type Page struct {
	t       testing.TB
	out     *os.File
	session string
	next    int

	mu      sync.Mutex
	answers map[int]chan message

	problems, requests []string
}

// message is one message of the protocol.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Open opens a page of the given size. Without a Chromium the test is skipped, unless SHAREDTENSOR_REQUIRE names
// "chromium".
func Open(t testing.TB, url string, width, height int) *Page {
	t.Helper()
	program, err := exec.LookPath("chromium")
	drivertest.Needs(t, "chromium", err == nil, "a browser, which looks at the page")
	toRead, out := pipe(t)
	in, toWrite := pipe(t)
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--remote-debugging-pipe", "--user-data-dir="+profile(t), "about:blank")
	cmd.ExtraFiles = []*os.File{toRead, toWrite}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toRead.Close(), toWrite.Close() // the browser has its own copies
	p := &Page{t: t, out: out, answers: map[int]chan message{}}
	go p.read(in)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_, _ = out.Close(), in.Close()
	})
	p.attach(width, height)
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	return p
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// profile returns a folder that may outlive the test for a moment, because the browser's processes do not all end at
// once.
func profile(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "browser")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 50 {
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return dir
}

func (p *Page) attach(width, height int) {
	p.t.Helper()
	var target struct {
		TargetID string `json:"targetId"`
	}
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Accessibility"} {
		p.call(domain+".enable", nil, nil)
	}
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// read dispatches the browser's messages until the browser ends.
func (p *Page) read(in *os.File) {
	r := bufio.NewReader(in)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		var params json.RawMessage
		m.Params = &params
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		p.mu.Lock()
		if answer := p.answers[m.ID]; answer != nil {
			delete(p.answers, m.ID)
			answer <- m
		}
		p.note(m.Method, string(params))
		p.mu.Unlock()
	}
}

// note records errors and requests for Problems and Requests.
func (p *Page) note(method, params string) {
	switch method {
	case "Runtime.exceptionThrown":
		p.problems = append(p.problems, params)
	case "Log.entryAdded":
		if strings.Contains(params, `"level":"error"`) {
			p.problems = append(p.problems, params)
		}
	case "Network.requestWillBeSent":
		var sent struct {
			Request struct {
				URL string `json:"url"`
			} `json:"request"`
		}
		_ = json.Unmarshal([]byte(params), &sent)
		p.requests = append(p.requests, sent.Request.URL)
	}
}

// call makes one request of the protocol. out may be nil.
func (p *Page) call(method string, params, out any) {
	p.t.Helper()
	p.next++
	answer := make(chan message, 1)
	p.mu.Lock()
	p.answers[p.next] = answer
	p.mu.Unlock()
	text, err := json.Marshal(message{ID: p.next, Session: p.session, Method: method, Params: params})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.out.Write(append(text, 0)); err != nil {
		p.t.Fatal(err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			p.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		if out != nil {
			if err := json.Unmarshal(m.Result, out); err != nil {
				p.t.Fatal(err)
			}
		}
	case <-time.After(patience):
		p.t.Fatalf("%s: no answer", method)
	}
}

// Eval returns the value of an expression as text.
func (p *Page) Eval(expression string) string {
	p.t.Helper()
	var out struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.Exception != nil {
		p.t.Fatalf("%s: %s", expression, out.Exception)
	}
	return fmt.Sprint(out.Result.Value)
}

// WaitFor waits until an expression is true.
func (p *Page) WaitFor(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); p.Eval(expression) != "true"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("never true: %s\nthe page shows:\n%s", expression, p.Eval("document.body?.innerText"))
		}
	}
}

// Media sets media features, such as "prefers-color-scheme" to "dark".
func (p *Page) Media(name, value string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": name, "value": value}}}, nil)
}

// Press presses a key, such as "Tab".
func (p *Page) Press(key string, code int) {
	p.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		p.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
	}
}

// Node is a node of the accessibility tree, which screen readers use.
type Node struct {
	Role, Name string
	Focusable  bool
}

// Accessibility returns the nodes that are not ignored.
func (p *Page) Accessibility() []Node {
	p.t.Helper()
	type value struct {
		Value any `json:"value"`
	}
	var out struct {
		Nodes []struct {
			Ignored    bool  `json:"ignored"`
			Role       value `json:"role"`
			Name       value `json:"name"`
			Properties []struct {
				Name  string `json:"name"`
				Value value  `json:"value"`
			} `json:"properties"`
		} `json:"nodes"`
	}
	p.call("Accessibility.getFullAXTree", nil, &out)
	var nodes []Node
	for _, n := range out.Nodes {
		if n.Ignored {
			continue
		}
		node := Node{Role: fmt.Sprint(n.Role.Value), Name: fmt.Sprint(n.Name.Value)}
		for _, property := range n.Properties {
			if property.Name == "focusable" {
				node.Focusable = property.Value.Value == true
			}
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// Problems returns the exceptions and errors so far.
func (p *Page) Problems() []string { p.mu.Lock(); defer p.mu.Unlock(); return slices.Clone(p.problems) }

// Requests returns the URLs that the page has requested.
func (p *Page) Requests() []string { p.mu.Lock(); defer p.mu.Unlock(); return slices.Clone(p.requests) }

// Screenshot writes an image of the whole page to the folder in SHAREDTENSOR_SCREENSHOTS. It does nothing if the
// variable is empty.
func (p *Page) Screenshot(name string) {
	p.t.Helper()
	dir := os.Getenv("SHAREDTENSOR_SCREENSHOTS")
	if dir == "" {
		return
	}
	var out struct {
		Data string `json:"data"`
	}
	p.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &out)
	picture, err := base64.StdEncoding.DecodeString(out.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
