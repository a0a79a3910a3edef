package store

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxRedirects is how many redirects are followed one after the other.
const maxRedirects = 5

// NewHTTPClient returns a client whose connections carry one transfer each, by HTTP/1.1: it reads into memory at the
// speed of the connection.
func NewHTTPClient(config *tls.Config, connections int, redirect func(r *http.Request, via []*http.Request) error) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 10 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: connections + 2, MaxConnsPerHost: connections + 2, IdleConnTimeout: time.Minute, DisableCompression: true,
		ReadBufferSize: 64 << 10, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, MaxResponseHeaderBytes: 64 << 10,
	}
	return &http.Client{Transport: transport, CheckRedirect: redirect}
}

// withoutCredentials follows redirects, also to other hosts, as registries and the hub have their bytes at stores of
// others. Credentials stay behind: Go would send them on to hosts below the first one.
func withoutCredentials(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: too many redirects", ErrAnswer)
	}
	last := via[len(via)-1].URL
	if last.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("%w: it redirects from https to %s", ErrAnswer, r.URL.Scheme)
	}
	if r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
		r.Header.Del("Authorization")
		r.Header.Del("Cookie")
	}
	return nil
}

// doer makes requests: an HTTP client, or one that knows how to log in.
type doer interface {
	Do(r *http.Request) (*http.Response, error)
}

// get makes a GET request. The caller closes the body of the response, whose status is a success.
func get(ctx context.Context, client doer, address string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		r.Header = header
	}
	resp, err := client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		var outer *url.Error
		if errors.As(err, &outer) { // its URL may have a signature in it
			return nil, fmt.Errorf("%s: %w", r.URL.Host, outer.Err)
		}
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, Refusal(resp, resp.Body)
	}
	return resp, nil
}

// getRange asks for the bytes from begin to end of a file of size bytes.
func getRange(ctx context.Context, client doer, address string, header http.Header, begin, end, size int64) (*http.Response, error) {
	if header = header.Clone(); header == nil {
		header = http.Header{}
	}
	if begin > 0 || end < size {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", begin, end-1))
	}
	resp, err := get(ctx, client, address, header)
	if err != nil {
		return nil, err
	}
	err = CheckRange(resp, begin, end, size)
	if errors.Is(err, ErrNoRanges) && begin == 0 {
		err = nil // the beginning of the whole is the range
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// CheckRange holds an answer to the range that was asked for. A body without a length may have no end.
func CheckRange(r *http.Response, begin, end, size int64) error {
	partial := begin > 0 || end < size
	if r.ContentLength != end-begin || partial != (r.StatusCode == http.StatusPartialContent) {
		if partial && r.StatusCode == http.StatusOK && r.ContentLength == size {
			return ErrNoRanges
		}
		return fmt.Errorf("%w: asked for bytes %d to %d of %d, it sends status %d and %d bytes", ErrAnswer, begin, end, size, r.StatusCode, r.ContentLength)
	}
	want := "bytes " + strconv.FormatInt(begin, 10) + "-" + strconv.FormatInt(end-1, 10) + "/" + strconv.FormatInt(size, 10)
	if got := r.Header.Get("Content-Range"); partial && got != want {
		return fmt.Errorf("%w: asked for %q it sends %q", ErrAnswer, want, Shortened(got))
	}
	return nil
}

// Refusal reads from the body of an answer why the place does not do what it was asked.
func Refusal(resp *http.Response, body io.Reader) error {
	text, _ := io.ReadAll(io.LimitReader(body, 4<<10))
	var said string
	for _, find := range []func([]byte) string{gatewaysMessage, hubsMessage, func(text []byte) string { return strings.TrimSpace(string(text)) }} {
		if said = find(text); said != "" {
			break
		}
	}
	printable := func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}
	return &StatusError{resp.StatusCode, Shortened(strings.Map(printable, said)), retryAfter(resp.Header.Get("Retry-After"))}
}

// gatewaysMessage is what gateways answer: {"error": {"message": "…"}}.
func gatewaysMessage(text []byte) string {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &body) // what is no JSON is shown as it is
	return body.Error.Message
}

// hubsMessage is what the hub answers: {"error": "…"}.
func hubsMessage(text []byte) string {
	var body struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(text, &body) // as above
	return body.Error
}

// retryAfter reads the field of that name in seconds.
func retryAfter(text string) time.Duration {
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 60)) * time.Second
}

// Shortened is a text of the source's for an error.
func Shortened(text string) string {
	if len(text) > 200 {
		return strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
