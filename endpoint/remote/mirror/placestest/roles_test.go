package placestest_test

import (
	"bufio"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
)

// withoutAWS removes the settings of Amazon's tools from the environment.
func withoutAWS(t testing.TB) {
	for _, name := range []string{
		"AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL",
		"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "credentials"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "config"))
}

// awsFiles writes Amazon's configuration and credentials files.
func awsFiles(t testing.TB, config, credentials string) {
	t.Helper()
	require.NoError(t, os.WriteFile(os.Getenv("AWS_CONFIG_FILE"), []byte(config), 0o600))
	require.NoError(t, os.WriteFile(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), []byte(credentials), 0o600))
}

// motoServer is a moto process with a bucket that only a role may read.
type motoServer struct {
	URL, Role, Key, Secret string
}

func startMoto(t *testing.T, dir string) *motoServer {
	t.Helper()
	python := os.Getenv("MOTO_PYTHON")
	drivertest.Needs(t, "moto", python != "", "set MOTO_PYTHON to a Python with moto[s3,sts,iam,server]")
	c := exec.Command(python, "testdata/moto_server.py", dir)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, in.Close()); require.NoError(t, c.Wait()) })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	m := &motoServer{}
	require.NoError(t, json.Unmarshal(line, m))
	return m
}

// A model is pulled with the role of a profile. The user's own keys, another role, and no keys are refused.
func TestPullWithRole(t *testing.T) {
	dir := folderOf(t, 1, true)
	moto := startMoto(t, dir)
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	keys := fmt.Sprintf("[user]\naws_access_key_id = %s\naws_secret_access_key = %s\n", moto.Key, moto.Secret)
	profile := func(name, more string) string {
		return fmt.Sprintf("[profile %s]\nregion = eu-west-3\nendpoint_url = %s\n%s\n", name, moto.URL, more)
	}
	for name, c := range map[string]struct {
		profile, config string
		refused         string // text of the error; empty if the pull succeeds
	}{
		"role":             {"r", profile("r", "role_arn = "+moto.Role+"\nsource_profile = user"), ""},
		"user":             {"user", profile("user", ""), "403"},
		"another role":     {"r", profile("r", "role_arn = arn:aws:iam::123456789012:role/other\nsource_profile = nobody"), "the credentials for role"},
		"without a source": {"r", profile("r", "role_arn = "+moto.Role), "source_profile"},
	} {
		t.Run(name, func(t *testing.T) {
			withoutAWS(t)
			awsFiles(t, c.config, keys)
			t.Setenv("AWS_PROFILE", c.profile)
			m, err := mirror.New(mirror.Options{Source: "s3://models/org/m", Name: "m", Owner: target, Device: dev})
			if err == nil {
				defer m.Close()
				_, err = m.Pull(t.Context())
			}
			if c.refused == "" {
				require.NoError(t, err)
				requireModel(t, target, "m", dir)
				require.NoError(t, target.Withdraw(t.Context(), "m"))
				return
			}
			require.ErrorContains(t, err, c.refused)
		})
	}
}

// A bucket in another region than the configured one is read in its region, with credentials for that region.
func TestPullFromOtherRegion(t *testing.T) {
	withoutAWS(t)
	var refused atomic.Int64
	p := bucketPlace(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.Header.Get("Authorization"), "/eu-west-3/s3/aws4_request") {
				refused.Add(1)
				w.Header().Set("X-Amz-Bucket-Region", "eu-west-3")
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(http.StatusBadRequest)
				if r.Method != http.MethodHead {
					fmt.Fprint(w, `<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong</Message><Region>eu-west-3</Region></Error>`)
				}
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	dir := folderOf(t, 2, false)
	p.put(t, dir)
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	for i, address := range []string{p.address, p.address + "/model.safetensors"} { // a listing, and HEAD of an object
		_, err := newMirror(t, mirror.Options{Source: address, Name: "m", Owner: target, Device: dev}).Pull(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, i+1, refused.Load(), "one request to the configured region")
	}
	requireModel(t, target, "m", dir)
}

// googlePlace returns a folder in a bucket of Google's storage with its S3-compatible interface, which requires a token
// of the service account in GOOGLE_APPLICATION_CREDENTIALS.
func googlePlace(t testing.TB, between middleware) *place {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	issuer := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("assertion") == "" {
			http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"access_token":"google-secret","token_type":"Bearer","expires_in":3600}`)
	}))
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "reader@project.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": issuer.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "account.json")
	require.NoError(t, os.WriteFile(file, account, 0o600))
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)

	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("models"))
	inner := gofakes3.New(backend).Server()
	server := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer google-secret" {
			http.Error(w, `<Error><Code>AccessDenied</Code><Message>no token</Message></Error>`, http.StatusForbidden)
			return
		}
		between(inner).ServeHTTP(w, r)
	}))
	t.Setenv("STORAGE_EMULATOR_HOST", server.URL)
	return &place{"gs://models/org/m", func(t testing.TB, from string) { putObjects(t, inner, "/models/org/m/", from) }}
}

// The token of Google's storage is not sent to other hosts, also after a redirect, and its absence is refused.
func TestGoogleCredentials(t *testing.T) {
	elsewhere := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the token was sent to another host")
		}
		http.Error(w, "not here", http.StatusNotFound)
	}))
	var redirecting atomic.Bool
	p := googlePlace(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if redirecting.Load() {
				http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	dir := folderOf(t, 3, false)
	p.put(t, dir)
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	options := mirror.Options{Source: p.address, Name: "m", Owner: target, Device: dev}
	_, err := newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	requireModel(t, target, "m", dir)

	options.Name, options.Patience = "other", 1
	redirecting.Store(true)
	_, err = newMirror(t, options).Pull(t.Context())
	require.Error(t, err)
	redirecting.Store(false)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	_, err = newMirror(t, options).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrDenied)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
	_, err = newMirror(t, options).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrDenied)
}
