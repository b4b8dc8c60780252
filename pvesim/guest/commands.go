// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"path"
	"slices"
	"strings"
)

// maxScriptDepth limits the depth of nested scripts.
const maxScriptDepth = 5

// unitEffect is the effect of commands on the unit that registers the Node.
type unitEffect struct {
	service       service
	enable, start bool
	// powerOff is whether the commands power the guest off.
	powerOff bool
}

func (e unitEffect) and(other unitEffect) unitEffect {
	if other.service != "" {
		e.service = other.service
	}
	return unitEffect{service: e.service, enable: e.enable || other.enable, start: e.start || other.start, powerOff: e.powerOff || other.powerOff}
}

// effectOf interprets systemctl, touch, mv and echo, and follows calls of shells and of
// scripts on the disk.
func (g *guest) effectOf(words []string, depth int) unitEffect {
	words = withoutPrefixes(words)
	if len(words) == 0 || depth == 0 {
		return unitEffect{}
	}
	switch program := path.Base(words[0]); program {
	case "systemctl":
		return systemctl(words[1:])
	case "poweroff", "halt":
		return unitEffect{powerOff: true}
	case "shutdown":
		return unitEffect{powerOff: !slices.Contains(words, "-r") && !slices.Contains(words, "-c")}
	case "systemd-run":
		return g.effectOf(operands(words[1:]), depth-1)
	case "touch":
		g.touch(operands(words[1:]))
		return unitEffect{}
	case "mv":
		g.move(operands(words[1:]))
		return unitEffect{}
	case "echo":
		g.echo(words[1:])
		return unitEffect{}
	case "sh", "bash":
		rest := words[1:]
		if i := slices.IndexFunc(rest, isTextOption); i >= 0 && i+1 < len(rest) {
			return g.effectOfText(rest[i+1], depth-1)
		}
		return g.effectOf(operands(rest), depth)
	}
	if script, ok := g.storage.Read(path.Clean(words[0])); ok {
		return g.effectOfText(string(script), depth-1)
	}
	return unitEffect{}
}

// touch creates the files that do not exist.
func (g *guest) touch(names []string) {
	for _, name := range names {
		if _, exists := g.storage.Read(absolute(name)); !exists {
			g.storage.Write(absolute(name), nil)
		}
	}
}

// move writes a file to another path. It keeps the file at its old path, because a disk
// has no operation that deletes a file.
func (g *guest) move(names []string) {
	if len(names) != 2 {
		return
	}
	if content, ok := g.storage.Read(absolute(names[0])); ok {
		g.storage.Write(absolute(names[1]), content)
	}
}

// absolute returns the path of a file that a script names: scripts run in the root directory.
func absolute(name string) string { return path.Join("/", name) }

// isTextOption reports whether word is a shell's -c, possibly combined with other
// options as in -ec.
func isTextOption(word string) bool {
	return strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") && strings.HasSuffix(word, "c")
}

func (g *guest) effectOfText(text string, depth int) unitEffect {
	var total unitEffect
	for _, words := range shellCommands(text) {
		total = total.and(g.effectOf(words, depth))
	}
	return total
}

// systemctl parses the arguments of a systemctl command. A unit that the image's
// package enables needs only a start; systemd starts it at later boots.
func systemctl(args []string) unitEffect {
	names := operands(args)
	if len(names) == 1 && (names[0] == "poweroff" || names[0] == "halt") {
		return unitEffect{powerOff: true}
	}
	if len(names) < 2 {
		return unitEffect{}
	}
	for _, unit := range names[1:] {
		s, known := serviceOf(unit)
		if !known {
			continue
		}
		switch names[0] {
		case "enable", "reenable":
			return unitEffect{service: s, enable: true, start: slices.Contains(args, "--now")}
		case "start", "restart", "try-restart", "reload-or-restart":
			return unitEffect{service: s, enable: true, start: true}
		}
	}
	return unitEffect{}
}

// enablesKubelet reports whether writing this file starts the kubelet of a
// kubeadm-style image, whose enabled unit waits for the file.
func enablesKubelet(name string) bool {
	switch clean := path.Clean(name); clean {
	case "/etc/default/kubelet", "/etc/sysconfig/kubelet", "/etc/systemd/system/kubelet.service":
		return true
	default:
		return path.Dir(clean) == "/etc/systemd/system/kubelet.service.d"
	}
}

// withoutPrefixes removes variable assignments, sudo and exec before a command.
func withoutPrefixes(words []string) []string {
	for len(words) > 0 && (words[0] == "sudo" || words[0] == "exec" || words[0] == "then" || words[0] == "do" || isAssignment(words[0])) {
		words = words[1:]
	}
	return words
}

func isAssignment(word string) bool {
	name, _, found := strings.Cut(word, "=")
	return found && name != "" && !strings.ContainsAny(name, "-/ ")
}

// operands returns the words that are not options.
func operands(words []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, "-") })
}
