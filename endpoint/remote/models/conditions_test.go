package models_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// request sends a request whose header fields may have several lines.
func request(t *testing.T, gw *remotetest.Gateway, method, path string, body []byte, lines ...string) int {
	t.Helper()
	r, err := http.NewRequest(method, gw.HTTP()+path, bytes.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(lines); i += 2 {
		r.Header.Add(lines[i], lines[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// Changes of models honour If-Match and If-None-Match as RFC 9110 defines them.
func TestChangesHaveConditions(t *testing.T) {
	path, _ := remotetest.TiedFile(t)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	const model, body = "/v1/models/m", "/v1/models/m/model.safetensors"
	require.Equal(t, http.StatusCreated, request(t, gw, http.MethodPut, body, file))
	resp, _ := gw.Get(t, body)
	tag := resp.Header.Get("ETag")
	require.NotEmpty(t, tag)
	version := func() string {
		resp, _ := gw.Get(t, body)
		return resp.Header.Get("X-Sharedtensor-Version")
	}

	for _, c := range []struct {
		name      string
		lines     []string
		published bool // whether the change is made to a published model
		missing   bool // to one that is not published
		bad       bool
	}{
		{"none", nil, true, true, false},
		{"its tag", []string{"If-Match", tag}, true, false, false},
		{"another tag", []string{"If-Match", `"other"`}, false, false, false},
		{"a list", []string{"If-Match", `"other", ` + tag}, true, false, false},
		{"a list with commas in tags", []string{"If-Match", `"a,b",,` + tag + " ,"}, true, false, false},
		{"two lines", []string{"If-Match", `"other"`, "If-Match", tag}, true, false, false},
		{"a weak tag", []string{"If-Match", "W/" + tag}, false, false, false},
		{"any", []string{"If-Match", "*"}, true, false, false},
		{"not its tag", []string{"If-None-Match", tag}, false, true, false},
		{"not its weak tag", []string{"If-None-Match", "W/" + tag}, false, true, false},
		{"not another tag", []string{"If-None-Match", `"other"`}, true, true, false},
		{"not in a list", []string{"If-None-Match", `"other", W/"x", ` + tag}, false, true, false},
		{"not on two lines", []string{"If-None-Match", `"other"`, "If-None-Match", tag}, false, true, false},
		{"not any", []string{"If-None-Match", "*"}, false, true, false},
		{"both hold", []string{"If-Match", tag, "If-None-Match", `"other"`}, true, false, false},
		{"the first does not hold", []string{"If-Match", `"other"`, "If-None-Match", `"other"`}, false, false, false},
		{"the second does not hold", []string{"If-Match", tag, "If-None-Match", "*"}, false, false, false},
		{"no date of a model", []string{"If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT"}, true, true, false},
		{"no quotes", []string{"If-Match", "other"}, false, false, true},
		{"no end", []string{"If-None-Match", `"other`}, false, false, true},
		{"empty", []string{"If-Match", ""}, false, false, true},
	} {
		want := func(done bool, status int) int {
			switch {
			case c.bad:
				return http.StatusBadRequest
			case done:
				return status
			}
			return http.StatusPreconditionFailed
		}
		t.Run("PUT "+c.name, func(t *testing.T) {
			before := version()
			require.Equal(t, want(c.published, http.StatusCreated), request(t, gw, http.MethodPut, body, file, c.lines...))
			require.Equal(t, c.published, version() != before)
			missing := fmt.Sprintf("/v1/models/%s/model.safetensors", strings.ReplaceAll(c.name, " ", "-"))
			require.Equal(t, want(c.missing, http.StatusCreated), request(t, gw, http.MethodPut, missing, file, c.lines...))
			resp, _ := gw.Get(t, missing)
			require.Equal(t, c.missing, resp.StatusCode == http.StatusOK)
		})
		t.Run("DELETE "+c.name, func(t *testing.T) {
			require.Equal(t, want(c.published, http.StatusNoContent), request(t, gw, http.MethodDelete, model, nil, c.lines...))
			require.Equal(t, c.published, version() == "")
			require.Equal(t, want(true, http.StatusNotFound), request(t, gw, http.MethodDelete, "/v1/models/nothing", nil, c.lines...))
			if c.published {
				require.Equal(t, http.StatusCreated, request(t, gw, http.MethodPut, body, file))
			}
		})
	}
}

// Of concurrent changes with the same condition, which each of them ends, one is made.
func TestConditionsHoldWhenTheChangeIsMade(t *testing.T) {
	path, _ := remotetest.TiedFile(t)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	owner := remotetest.StartOwner(t)
	gateways := []*remotetest.Gateway{remotetest.StartGateway(t, owner.Socket), remotetest.StartGateway(t, owner.Socket)}
	for _, gw := range gateways {
		gw.Attached(t)
	}
	for round := range 10 {
		const clients = 8
		statuses := make([]int, clients)
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				url := fmt.Sprintf("/v1/models/race%d/model.safetensors", round)
				statuses[i] = request(t, gateways[i%2], http.MethodPut, url, file, "If-None-Match", "*")
			})
		}
		all.Wait()
		made := 0
		for _, status := range statuses {
			if status == http.StatusCreated {
				made++
				continue
			}
			require.Equal(t, http.StatusPreconditionFailed, status)
		}
		require.Equal(t, 1, made, "%v", statuses)
	}
}

// All digests of a request are verified: each line and each field, with the hash functions that are known.
func TestUploadsVerifyAllDigests(t *testing.T) {
	path, _ := remotetest.TiedFile(t)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket)
	gw.Attached(t)
	sum := func(data []byte) (string, string) {
		short, long := sha256.Sum256(data), sha512.Sum512(data)
		return "sha-256=:" + base64.StdEncoding.EncodeToString(short[:]) + ":", "sha-512=:" + base64.StdEncoding.EncodeToString(long[:]) + ":"
	}
	right, right512 := sum(file)
	wrong, wrong512 := sum([]byte("other"))
	unknown := "md5=:AAAAAAAAAAAAAAAAAAAAAA==:"
	for _, c := range []struct {
		name  string
		valid bool
		lines []string
	}{
		{"right", true, []string{"Repr-Digest", right}},
		{"wrong", false, []string{"Repr-Digest", wrong}},
		{"wrong on the second line", false, []string{"Repr-Digest", unknown, "Repr-Digest", wrong}},
		{"the last value counts", true, []string{"Repr-Digest", wrong, "Repr-Digest", right}},
		{"the last value is wrong", false, []string{"Repr-Digest", right, "Repr-Digest", wrong}},
		{"a wrong content digest", false, []string{"Repr-Digest", right, "Content-Digest", wrong}},
		{"a wrong content digest alone", false, []string{"Content-Digest", wrong}},
		{"both right", true, []string{"Repr-Digest", right, "Content-Digest", right512}},
		{"unknown", true, []string{"Repr-Digest", unknown}},
		{"unknown beside wrong", false, []string{"Repr-Digest", unknown + ", " + wrong}},
		{"sha-512", true, []string{"Repr-Digest", right + " , " + right512}},
		{"wrong sha-512", false, []string{"Repr-Digest", right + "," + wrong512}},
		{"parameters", true, []string{"Repr-Digest", right + ";q=1"}},
		{"no base64", false, []string{"Repr-Digest", "sha-256=:?:"}},
		{"too short", false, []string{"Repr-Digest", "sha-256=:AAAA:"}},
		{"no bytes", false, []string{"Repr-Digest", `sha-256="text"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := http.StatusBadRequest
			if c.valid {
				want = http.StatusCreated
			}
			require.Equal(t, want, request(t, gw, http.MethodPut, "/v1/models/m/model.safetensors", file, c.lines...))
		})
	}
}
