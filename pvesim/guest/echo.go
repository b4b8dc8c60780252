// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// serialFile contains the serial number of the machine. It identifies a guest that
// shares its boot data with other guests.
const serialFile = "/sys/class/dmi/id/product_serial"

// echo writes a line to the file that its output is redirected to.
func (g *guest) echo(words []string) {
	i := slices.IndexFunc(words, func(w string) bool { return w == ">" || w == ">>" })
	if i < 0 || i+1 >= len(words) {
		return
	}
	var before []byte
	name := absolute(words[i+1])
	if words[i] == ">>" {
		before, _ = g.storage.Read(name)
	}
	g.storage.Write(name, append(before, g.substitute(strings.Join(words[:i], " "))+"\n"...))
}

// substitution matches a command substitution in a line: $(cat FILE), or
// $(sed 's/PATTERN/REPLACEMENT/' FILE).
var substitution = regexp.MustCompile(`\$\((?:cat|sed '?s([/|])(.*?)[/|](.*?)[/|]'?) (/\S+)\)`)

// routeLookup matches a command substitution that looks up routes.
var routeLookup = regexp.MustCompile(`(?s)\$\(.*\bip -[46] route get .*\)`)

// substitute replaces command substitutions with their output. It leaves substitutions
// that do not match unchanged.
func (g *guest) substitute(line string) string {
	line = routeLookup.ReplaceAllStringFunc(line, g.sourceAddresses)
	return substitution.ReplaceAllStringFunc(line, func(command string) string {
		m := substitution.FindStringSubmatch(command)
		content := g.serial
		if name := path.Clean(m[4]); name != serialFile {
			raw, _ := g.storage.Read(name)
			content = string(raw)
		}
		content = strings.TrimRight(content, "\n")
		if m[1] == "" {
			return content
		}
		pattern, err := regexp.Compile(m[2])
		if err != nil {
			g.console.printf("sed: %v", err)
			return ""
		}
		return pattern.ReplaceAllString(content, m[3])
	})
}
