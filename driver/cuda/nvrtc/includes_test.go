package nvrtc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/cuda/jitcache"
)

// Every spelling of an include that can read a file outside of IncludeDirs is refused, before the library is loaded.
func TestForeignIncludesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("text of the secret\n"), 0o600))
	allowed := filepath.Join(dir, "include")
	require.NoError(t, os.MkdirAll(filepath.Join(allowed, "sub"), 0o700))
	for name, text := range map[string]string{
		"up.h": `#include "../secret"`, "absolute.h": `#include "` + secret + `"`, "macro.h": "#include NAME", "sub/up.h": `#include "../../secret"`,
		"angle.h": `#include <../secret>`, "next.h": `#include_next "../secret"`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(allowed, name), []byte(text+"\n"), 0o600))
	}
	sources := map[string]string{
		"absolute":                   `#include "SECRET"`,
		"angle":                      `#include <SECRET>`,
		"parent":                     `#include "../secret"`,
		"parent within":              `#include "sub/../../secret"`,
		"no space":                   `#include"SECRET"`,
		"spaces":                     " \t # \v include \f \"SECRET\"",
		"digraph":                    `%:include "SECRET"`,
		"trigraph":                   `??=include "SECRET"`,
		"comment before":             `/* a */ #include "SECRET"`,
		"comment within":             `# /* a */ include "SECRET"`,
		"comment behind":             `#include /* a */ "SECRET"`,
		"comment over lines":         "# /* a\n */ include \"SECRET\"",
		"comment behind, over lines": "#include /* a\n */ \"SECRET\"",
		"end of a comment":           "/* a\n b */ #include \"SECRET\"",
		"two in a line":              `#include "SECRET" /* a */ #include "sub/fine.h"`,
		"joined lines":               "#inc\\\nlude \"SECRET\"",
		"joined lines, carriage":     "#inc\\\r\nlude \"SECRET\"",
		"joined lines, space":        "#inc\\ \nlude \"SECRET\"",
		"joined lines, trigraph":     "#inc??/\nlude \"SECRET\"",
		"joined in the name":         "#include \"SEC\\\nRET\"",
		"not joined":                 "int a; \\ \n#include \"SECRET\"",
		"carriage return":            "int a;\r#include \"SECRET\"",
		"mark of the byte order":     "\ufeff#include \"SECRET\"",
		"macro":                      "#define X \"SECRET\"\n#include X",
		"macro of an option":         "#include NAME",
		"text that looks closed":     "const char *a = \"/*\";\n#include \"SECRET\"",
		"next":                       `#include_next "SECRET"`,
		"import":                     `#import "SECRET"`,
		"import of a module":         `import "SECRET";`,
		"embed":                      `const char a[] = {` + "\n#embed \"SECRET\"\n};",
		"test":                       `#if __has_include("SECRET")` + "\n#endif",
		"second test":                `#if __has_include("sub/fine.h") && __has_include( <SECRET> )` + "\n#endif",
		"test of a macro":            "#if __has_include(NAME)\n#endif",
		"header that goes up":        `#include "up.h"`,
		"header, angle":              `#include "angle.h"`,
		"header, next":               `#include "next.h"`,
		"header further below":       `#include "sub/up.h"`,
		"header with a path":         `#include "absolute.h"`,
		"header with a macro":        "#define NAME \"SECRET\"\n#include \"macro.h\"",
	}
	for what, source := range sources {
		source = strings.ReplaceAll(source, "SECRET", secret)
		source = strings.ReplaceAll(source, "SEC\\\nRET", secret[:3]+"\\\n"+secret[3:])
		for where, o := range map[string]Options{
			"source": {}, "header": {Headers: map[string]string{"h.h": source}},
		} {
			text := source
			if where == "header" {
				text = `#include "h.h"`
			}
			o.IncludeDirs, o.Defines = []string{allowed}, map[string]string{"NAME": `"` + secret + `"`}
			_, err := Compile(t.Context(), "k.cu", text, o)
			require.ErrorIs(t, err, ErrOptions, "%s in the %s", what, where)
			require.ErrorContains(t, err, "AnyInclude", "%s in the %s", what, where)
			if !strings.HasPrefix(what, "header") {
				o.IncludeDirs = nil
				_, err = Compile(t.Context(), "k.cu", text, o)
				require.ErrorIs(t, err, ErrOptions, "%s in the %s, without folders", what, where)
			}
		}
	}
}

// Texts that only look like includes, and includes within the folders, are compiled.
func TestOrdinaryIncludes(t *testing.T) {
	need(t)
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"a/b", "sub"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	for name, text := range map[string]string{
		"top.h": "#pragma once\n#define TOP 1\n", "a/b/deep.h": "#pragma once\n#include <a/up.h>\n#include <top.h>\n#include \"a/b/deep.h\"\n",
		"a/up.h": "#pragma once\n#include \"sub/../top.h\"\n#define UP 2\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const k = "\nextern \"C\" __global__ void k(int *x) { *x = TOP + UP; }\n"
	for what, source := range map[string]string{
		"below":    "#include \"a/b/deep.h\"" + k,
		"absolute": "#include \"" + filepath.Join(dir, "a/b/deep.h") + "\"" + k,
		"comments": "// this does not include /etc/x\n/* #includes of \"/etc/x\" are refused */\n#include <a/up.h> // and \"/etc/x\"" + k,
		"test":     "#ifdef __has_include\n#if __has_include(<missing.h>)\n#error\n#endif\n#endif\n#include <a/up.h>" + k,
	} {
		b, err := Compile(t.Context(), "k.cu", source, Options{IncludeDirs: []string{dir}})
		require.NoError(t, err, what)
		require.Contains(t, string(b.Code), ".entry k(")
	}
	source := "#include HEADER" + k
	o := Options{IncludeDirs: []string{dir}, Defines: map[string]string{"HEADER": "<a/up.h>"}, AnyInclude: true}
	b, err := Compile(t.Context(), "k.cu", source, o)
	require.NoError(t, err)
	require.Contains(t, string(b.Code), ".entry k(")
}

// Code of the cache is never that of a file that has changed, wherever the file is and however it is included.
func TestCacheCoversIncludes(t *testing.T) {
	need(t)
	t.Parallel()
	cache, err := jitcache.Open(jitcache.Options{Dir: filepath.Join(t.TempDir(), "jit")})
	require.NoError(t, err)
	root := t.TempDir()
	for what, c := range map[string]struct {
		source, file string
		dirs         []string
		define       string
		any, never   bool
	}{
		"in a folder":          {`#include "n.h"`, "i/n.h", []string{"i"}, "", false, false},
		"absolute":             {`#include "ROOT/o/n.h"`, "o/n.h", []string{"i"}, "", true, false},
		"above a folder":       {`#include "../n.h"`, "n.h", []string{"i"}, "", true, false},
		"above, by a header":   {`#include "up.h"`, "n.h", []string{"i"}, "", true, false},
		"by an absolute one":   {`#include "ROOT/i/up.h"`, "n.h", []string{"j"}, "", true, false},
		"in the second folder": {`#include <n.h>`, "i/n.h", []string{"j", "i"}, "", false, false},
		"by a macro":           {`#include HEADER`, "o/n.h", nil, `"ROOT/o/n.h"`, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(root, strings.ReplaceAll(what, " ", "_"))
			for _, d := range []string{"i", "j", "o"} {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "i/up.h"), []byte("#include \"../n.h\"\n"), 0o600))
			replace := func(s string) string { return strings.ReplaceAll(s, "ROOT", dir) }
			o := Options{Cache: cache, AnyInclude: c.any}
			for _, d := range c.dirs {
				o.IncludeDirs = append(o.IncludeDirs, filepath.Join(dir, d))
			}
			if c.define != "" {
				o.Defines = map[string]string{"HEADER": replace(c.define)}
			}
			path := filepath.Join(dir, c.file)
			old, err := os.Stat(dir)
			require.NoError(t, err)
			compile := func(value string) *Binary {
				t.Helper()
				// The size and the time stay the same.
				require.NoError(t, os.WriteFile(path, []byte("#define N "+value+"\n"), 0o600))
				require.NoError(t, os.Chtimes(path, old.ModTime(), old.ModTime()))
				b, err := Compile(t.Context(), "k.cu", replace(c.source)+"\nextern \"C\" __global__ void k(int *x) { *x = N; }\n", o)
				require.NoError(t, err)
				require.Contains(t, string(b.Code), value, "the code is that of the file")
				return b
			}
			require.False(t, compile("41234").Cached)
			require.Equal(t, !c.never, compile("41234").Cached)
			require.False(t, compile("56789").Cached)
			if what == "in the second folder" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "j/n.h"), []byte("#define N 77777\n"), 0o600))
				b, err := Compile(t.Context(), "k.cu", c.source+"\nextern \"C\" __global__ void k(int *x) { *x = N; }\n", o)
				require.NoError(t, err)
				require.False(t, b.Cached, "a new file precedes the old one")
				require.Contains(t, string(b.Code), "77777")
			}
		})
	}
}
