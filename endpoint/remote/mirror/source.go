package mirror

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/module"
)

// source is a model at a gateway of another host.
type source struct {
	base     *url.URL // of the gateway
	name     string
	version  uint64 // 0 for the newest
	token    string
	client   *http.Client
	stall    time.Duration
	patience time.Duration
	moved    atomic.Int64 // bytes of bodies that came
	retry    func(error)
}

// parseSource reads https://host:2537/NAME[@VERSION]. What stands behind the last @ is a version only where it is a
// number.
func parseSource(text string) (base *url.URL, name string, version uint64, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, "", 0, fmt.Errorf("the source: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, "", 0, fmt.Errorf("the source %q is not https://HOST:2537/NAME", u.Redacted())
	}
	if u.User != nil {
		return nil, "", 0, fmt.Errorf("the source %q has a user in it: a token goes apart from it", u.Redacted())
	}
	name = strings.Trim(u.Path, "/")
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		if n, err := strconv.ParseUint(name[at+1:], 10, 64); err == nil && n > 0 {
			name, version = name[:at], n
		}
	}
	if name == "" {
		return nil, "", 0, fmt.Errorf("the source %q names no model: https://HOST:2537/NAME", text)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, name, version, nil
}

// newHTTPClient returns a client whose connections carry one transfer each, by HTTP/1.1: it reads into memory at the
// speed of the connection.
func newHTTPClient(config *tls.Config, connections int) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 10 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: connections + 2, MaxConnsPerHost: connections + 2, IdleConnTimeout: time.Minute, DisableCompression: true,
		ReadBufferSize: 64 << 10, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, MaxResponseHeaderBytes: 64 << 10,
	}
	return &http.Client{Transport: transport, CheckRedirect: sameHost}
}

// sameHost follows a redirect within the host only: the token is for it, and so is the trust in what it says.
func sameHost(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	if r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
		return fmt.Errorf("%w: it redirects to %s", ErrSource, r.URL.Host)
	}
	if len(via) > 5 {
		return fmt.Errorf("%w: too many redirects", ErrSource)
	}
	return nil
}

// path is the path of a version of the model; version 0 is the newest.
func (s *source) path(version uint64, rest string) string {
	text := "/v1/models/" + url.PathEscape(s.name)
	if version != 0 {
		text += "@" + strconv.FormatUint(version, 10)
	}
	return text + rest
}

// answer is a response whose body is watched: reading it fails where nothing comes for the stall time.
type answer struct {
	*http.Response
	source *source
	timer  *time.Timer
	cancel context.CancelCauseFunc
	ctx    context.Context
}

// do makes one request. The caller closes the answer.
func (s *source) do(ctx context.Context, method, path string, fields ...string) (*answer, error) {
	u, err := s.base.Parse(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	a := &answer{source: s, cancel: cancel, ctx: ctx}
	a.timer = time.AfterFunc(s.stall, func() { cancel(fmt.Errorf("%w for %v", ErrStalled, s.stall)) })
	if a.Response, err = s.client.Do(r); err != nil {
		err = a.why(err)
		a.timer.Stop()
		cancel(nil)
		return nil, err
	}
	if a.StatusCode < 200 || a.StatusCode > 299 {
		defer a.Close()
		return nil, a.refusal()
	}
	return a, nil
}

// why is the reason behind an error of a request that was cancelled.
func (a *answer) why(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err // the URL is known
	}
	return err
}

// refusal reads why the source does not do what it was asked.
func (a *answer) refusal() error {
	text, _ := io.ReadAll(io.LimitReader(a, 4<<10))
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	said := strings.TrimSpace(string(text))
	if json.Unmarshal(text, &body) == nil && body.Error.Message != "" {
		said = body.Error.Message
	}
	printable := func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}
	return &statusError{a.StatusCode, shortened(strings.Map(printable, said)), retryAfter(a.Header.Get("Retry-After"))}
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	a.timer.Reset(a.source.stall)
	n, err := a.Body.Read(p)
	a.source.moved.Add(int64(n))
	if err != nil && err != io.EOF { //nolint:errorlint // as io.Reader has it
		err = a.why(err)
	}
	return n, err
}

// Close ends the request. What is left of a body is not read.
func (a *answer) Close() {
	a.timer.Stop()
	_ = a.Body.Close() // whatever was wrong with it was told by Read
	a.cancel(nil)
}

// readAll reads a whole answer of at most limit bytes.
func (a *answer) readAll(limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(a, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%w: an answer of more than %d bytes", ErrSource, limit)
	}
	return text, err
}

// again makes attempts until one succeeds, one fails for good, or the source has done nothing for the time of patience.
// An attempt says whether it got any further.
func (s *source) again(ctx context.Context, attempt func() (further bool, err error)) error {
	pause, last := 100*time.Millisecond, time.Now()
	for {
		further, err := attempt()
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		if further {
			pause, last = 100*time.Millisecond, time.Now()
		}
		if time.Since(last) > s.patience {
			return fmt.Errorf("it did not get any further for %v: %w", s.patience, err)
		}
		s.retry(err)
		var status *statusError
		if errors.As(err, &status) {
			pause = max(pause, status.after)
		}
		if err := sleep(ctx, time.Duration(float64(pause)*(0.5+rand.Float64()))); err != nil {
			return err
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// object asks for a small JSON object.
func (s *source) object(ctx context.Context, method, path string, out any) error {
	a, err := s.do(ctx, method, path)
	if err != nil {
		return err
	}
	defer a.Close()
	if a.StatusCode == http.StatusNoContent {
		return nil
	}
	text, err := a.readAll(64 << 10)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%w: %w", ErrSource, err)
	}
	return nil
}

// manifest fetches the manifest of a version with digests and checks it.
func (s *source) manifest(ctx context.Context, version uint64, limit int64) (m *manifest, err error) {
	err = s.again(ctx, func() (bool, error) {
		a, err := s.do(ctx, http.MethodGet, s.path(version, "/manifest?digests"))
		if err != nil {
			return false, err
		}
		defer a.Close()
		text, err := a.readAll(maxManifestBytes)
		if err != nil {
			return false, err
		}
		m, err = parseManifest(text, limit)
		return true, err
	})
	if err == nil && version != 0 && m.version != version {
		return nil, fmt.Errorf("%w: it was asked for version %d and has %d", ErrSource, version, m.version)
	}
	return m, err
}

// etag is what a gateway calls bytes with that digest.
func etag(d module.Digest) string { return `"sha256-` + d.String() + `"` }
