package gateway

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// Limits of token files: the minimum length of a token, so that it cannot be guessed, and the maximum size of a file.
const (
	minTokenBytes     = 16
	maxTokenFileBytes = 1 << 20
)

// tokenFile is a file or a directory of tokens that is reloaded when it changes. Without any token it
// is an error, and the previous tokens stay accepted.
type tokenFile struct {
	list *reloaded[[]token]
}

// token is one line of the file. Only its digest is kept, so that the time of a comparison does not reveal the token.
type token struct {
	digest [sha256.Size]byte
	id     Identity
}

func openTokenFile(path string, log *slog.Logger) (*tokenFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 && !info.IsDir() && log != nil {
		log.Warn("the token file is readable by other users", "file", path, "mode", info.Mode().Perm().String())
	}
	list, err := newReloaded("tokens", log, func() ([]token, error) { return readSomeTokens(path) }, path)
	if err != nil {
		return nil, err
	}
	return &tokenFile{list}, nil
}

// readSomeTokens is readTokens for at least one token: a file that is being written is empty for a moment.
func readSomeTokens(path string) ([]token, error) {
	list, err := readTokens(path)
	if err == nil && len(list) == 0 {
		return nil, fmt.Errorf("%s holds no token: add one of at least %d bytes, such as the output of openssl rand -hex 32", path, minTokenBytes)
	}
	return list, err
}

// readTokens reads a file of tokens, or a directory with a file for each name.
func readTokens(path string) (list []token, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readTokenLines(path, parseToken)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") { // such as those of a Kubernetes volume
			continue
		}
		of, err := readTokenLines(filepath.Join(path, name), func(line string) (*token, error) { return parseNamedToken(name, line) })
		if err != nil {
			return nil, err
		}
		if len(of) == 0 {
			return nil, fmt.Errorf("%s holds no token: remove the file to revoke those of its name", filepath.Join(path, name))
		}
		list = append(list, of...)
	}
	return list, nil
}

// parseNamedToken parses a line of a file in a directory of tokens: TOKEN [read-only].
func parseNamedToken(name, line string) (*token, error) {
	line, _, _ = strings.Cut(line, "#")
	secret, flags, _ := strings.Cut(strings.TrimSpace(line), " ")
	if secret == "" {
		return nil, nil
	}
	if strings.ContainsAny(name, "# \t") {
		return nil, fmt.Errorf("the name of a file of tokens has no '#' and no space: %q", name)
	}
	return parseToken(secret + " " + name + " " + flags)
}

func readTokenLines(path string, parse func(line string) (*token, error)) ([]token, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // best effort: the file was only read
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxTokenFileBytes {
		return nil, fmt.Errorf("%s: a file of tokens has at most %d bytes", path, maxTokenFileBytes)
	}
	var list []token
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		one, err := parse(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if one != nil {
			list = append(list, *one)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// parseToken parses a line. It returns nil if the line is empty or a comment. Errors do not contain the token.
func parseToken(line string) (*token, error) {
	line, _, _ = strings.Cut(line, "#")
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil, nil
	}
	if len(words[0]) < minTokenBytes {
		return nil, fmt.Errorf("a token has at least %d bytes", minTokenBytes)
	}
	one := &token{digest: sha256.Sum256([]byte(words[0]))}
	fingerprint := sha256.Sum256(one.digest[:]) // hash of the digest, so that an ID does not help to guess a token
	one.id = Identity{Method: rights.MethodToken, ID: hex.EncodeToString(fingerprint[:8])}
	if len(words) > 1 {
		one.id.Name = words[1]
	}
	if len(words) > 2 {
		one.id.ReadOnly = words[2] == "read-only"
	}
	if len(words) > 3 || len(words) == 3 && !one.id.ReadOnly {
		return nil, fmt.Errorf("a line is TOKEN [NAME [read-only]]")
	}
	return one, nil
}

// find returns the identity of a token. Its duration does not depend on how much of the token is correct.
func (f *tokenFile) find(presented string) (Identity, bool) {
	digest := sha256.Sum256([]byte(presented))
	for _, one := range f.list.get() {
		if one.digest == digest {
			return one.id, true
		}
	}
	return Identity{}, false
}
