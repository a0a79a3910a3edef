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

// maxRedirects limits the redirects of one request.
const maxRedirects = 5

// NewHTTPClient returns a client that uses HTTP/1.1, so that each connection carries one transfer and data is read at
// the connection's full speed.
func NewHTTPClient(config *tls.Config, connections int, redirect func(r *http.Request, via []*http.Request) error) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 10 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: connections + 2, MaxConnsPerHost: connections + 2, IdleConnTimeout: time.Minute, DisableCompression: true,
		ReadBufferSize: 64 << 10, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, MaxResponseHeaderBytes: 64 << 10,
	}
	return &http.Client{Transport: transport, CheckRedirect: redirect}
}

// withoutCredentials follows redirects, also to other hosts, because registries and the hub store their data there. It
// removes the credentials, which Go would send to subdomains of the first host.
func withoutCredentials(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: too many redirects", ErrAnswer)
	}
	last := via[len(via)-1].URL
	if last.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("%w: redirect from https to %s", ErrAnswer, r.URL.Scheme)
	}
	if r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
		r.Header.Del("Authorization")
		r.Header.Del("Cookie")
	}
	return nil
}

// doer sends requests: an HTTP client, or a client that logs in.
type doer interface {
	Do(r *http.Request) (*http.Response, error)
}

// get sends a GET request. It returns only successful responses. The caller closes the body.
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
		if errors.As(err, &outer) { // its URL may contain a signature
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

// getRange requests the bytes from begin to end of a file with the given size.
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
		err = nil // the range is the beginning of the whole file
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// CheckRange checks that a response contains the requested range. It requires a length, because a body without one may
// be endless.
func CheckRange(r *http.Response, begin, end, size int64) error {
	partial := begin > 0 || end < size
	if r.ContentLength != end-begin || partial != (r.StatusCode == http.StatusPartialContent) {
		if partial && r.StatusCode == http.StatusOK && r.ContentLength == size {
			return ErrNoRanges
		}
		return fmt.Errorf("%w: requested bytes %d to %d of %d, got status %d and %d bytes", ErrAnswer, begin, end, size, r.StatusCode, r.ContentLength)
	}
	want := "bytes " + strconv.FormatInt(begin, 10) + "-" + strconv.FormatInt(end-1, 10) + "/" + strconv.FormatInt(size, 10)
	if got := r.Header.Get("Content-Range"); partial && got != want {
		return fmt.Errorf("%w: requested %q, got %q", ErrAnswer, want, Shortened(got))
	}
	return nil
}

// Refusal returns the error described by the body of an unsuccessful response.
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

// gatewaysMessage returns the message of a gateway's error: {"error": {"message": "…"}}.
func gatewaysMessage(text []byte) string {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &body) // text that is not JSON is returned unchanged
	return body.Error.Message
}

// hubsMessage returns the message of the hub's error: {"error": "…"}.
func hubsMessage(text []byte) string {
	var body struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(text, &body) // text that is not JSON is returned unchanged
	return body.Error
}

// retryAfter parses a Retry-After header given in seconds.
func retryAfter(text string) time.Duration {
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, 60)) * time.Second
}

// Shortened shortens text received from the source for use in an error.
func Shortened(text string) string {
	if len(text) > 200 {
		return strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
