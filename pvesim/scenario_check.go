// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// fieldError is an invalid value of a field, for example hosts[0].cores.
type fieldError struct {
	path []any // names and indexes
	text string
}

func (e *fieldError) Error() string {
	var b strings.Builder
	for _, p := range e.path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, p)
		}
	}
	return b.String() + ": " + e.text
}

func bad(text string, path ...any) error { return &fieldError{path: path, text: text} }

// lineOf returns the line of a field in the file, or the line of its parent if the field is missing.
func lineOf(raw []byte, path []any) int {
	var doc yaml.Node
	if yaml.Unmarshal(raw, &doc) != nil || len(doc.Content) == 0 {
		return 0
	}
	at := doc.Content[0]
	for _, p := range path {
		next := child(at, p)
		if next == nil {
			break
		}
		at = next
	}
	return at.Line
}

func child(n *yaml.Node, p any) *yaml.Node {
	if i, ok := p.(int); ok {
		if n.Kind == yaml.SequenceNode && i < len(n.Content) {
			return n.Content[i]
		}
		return nil
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == fmt.Sprint(p) {
			return n.Content[i+1]
		}
	}
	return nil
}

// oneOf returns an error text for a value that is not allowed, or "".
func oneOf(v string, allowed ...string) string {
	if slices.Contains(allowed, v) {
		return ""
	}
	return fmt.Sprintf("%q is not one of %s", v, strings.Join(allowed, ", "))
}

// noneOrOneOf is oneOf for a field that may be absent.
func noneOrOneOf(v string, allowed ...string) string {
	if v == "" {
		return ""
	}
	return oneOf(v, allowed...)
}

func (s *Scenario) validate() error {
	if text := oneOf(s.Version, "8.4", "9.2"); text != "" {
		return bad(text, "version")
	}
	for typ, profile := range s.Latency {
		if _, ok := storage.Profiles[profile]; !ok {
			return bad(fmt.Sprintf("there is no latency profile %q", profile), "latency", typ)
		}
	}
	for _, check := range []func() error{s.validateHosts, s.validateStorages, s.validateAccess, s.validateGuests, s.validateFiles, s.validateJobs} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scenario) validateHosts() error {
	if len(s.Hosts) == 0 {
		return bad("a cluster needs at least one host", "hosts")
	}
	if s.Cluster == "" && len(s.Hosts) > 1 {
		return bad("several hosts need a cluster name", "cluster")
	}
	seen := map[string]bool{}
	for i, h := range s.Hosts {
		switch {
		case h.Name == "":
			return bad("a host needs a name", "hosts", i, "name")
		case seen[h.Name]:
			return bad(fmt.Sprintf("duplicate host %q", h.Name), "hosts", i, "name")
		case h.Sockets < 1:
			return bad("must be at least 1", "hosts", i, "sockets")
		case h.Cores < 1:
			return bad("must be at least 1", "hosts", i, "cores")
		case h.Memory < 256*MiB:
			return bad("must be at least 256MiB", "hosts", i, "memory")
		}
		if text := noneOrOneOf(h.Unreachable, "refused", "noroute", "timeout"); text != "" {
			return bad(text, "hosts", i, "unreachable")
		}
		if err := validateCeph(i, h.Ceph); err != nil {
			return err
		}
		seen[h.Name] = true
	}
	return nil
}

func (s *Scenario) hasHost(name string) bool {
	return slices.ContainsFunc(s.Hosts, func(h Host) bool { return h.Name == name })
}

func (s *Scenario) hasStorage(id string) bool {
	return slices.ContainsFunc(s.Storages, func(x Storage) bool { return x.ID == id })
}

func (s *Scenario) validateStorages() error {
	for i, st := range s.Storages {
		switch {
		case len(st.ID) < 2:
			return bad("a storage needs an id of at least two characters", "storages", i, "id")
		case !storage.IsKnownType(st.Type):
			return bad(fmt.Sprintf("%q is not a storage type; allowed are dir, lvmthin, lvm, zfspool, rbd, nfs and cifs", st.Type), "storages", i, "type")
		case st.Size <= 0:
			return bad("a storage needs a size", "storages", i, "size")
		}
		for j, c := range st.Content {
			if text := oneOf(c, "images", "rootdir", "iso", "vztmpl", "import", "snippets", "backup"); text != "" {
				return bad(text, "storages", i, "content", j)
			}
		}
		for j, h := range st.Hosts {
			if !s.hasHost(h) {
				return bad(fmt.Sprintf("there is no host %q", h), "storages", i, "hosts", j)
			}
		}
	}
	return nil
}

func (s *Scenario) validateAccess() error {
	privileges := schema.Privileges(s.Version)
	for i, r := range s.Roles {
		for j, p := range r.Privileges {
			if !slices.Contains(privileges, p) {
				return bad(fmt.Sprintf("%s has no privilege %q", s.Version, p), "roles", i, "privileges", j)
			}
		}
	}
	for i, u := range s.Users {
		if !strings.Contains(u.ID, "@") {
			return bad("a user id has the form name@realm", "users", i, "id")
		}
	}
	for i, a := range s.ACLs {
		subjects := 0
		for _, x := range []string{a.User, a.Group, a.Token} {
			if x != "" {
				subjects++
			}
		}
		switch {
		case !strings.HasPrefix(a.Path, "/"):
			return bad("a path begins with a slash", "acls", i, "path")
		case subjects != 1:
			return bad("exactly one of user, group and token is needed", "acls", i)
		case a.Role == "":
			return bad("a role is needed", "acls", i, "role")
		}
	}
	return nil
}

func (s *Scenario) validateGuests() error {
	seen := map[int]bool{}
	for i, g := range s.Guests {
		switch {
		case g.VMID < 100 || g.VMID > 999999999:
			return bad(strconv.Itoa(g.VMID)+" is not between 100 and 999999999", "guests", i, "vmid")
		case seen[g.VMID]:
			return bad(fmt.Sprintf("duplicate VMID %d", g.VMID), "guests", i, "vmid")
		case !s.hasHost(g.Host):
			return bad(fmt.Sprintf("there is no host %q", g.Host), "guests", i, "host")
		}
		if text := noneOrOneOf(g.Status, "running", "stopped"); text != "" {
			return bad(text, "guests", i, "status")
		}
		if text := noneOrOneOf(g.Type, "qemu", "lxc"); text != "" {
			return bad(text, "guests", i, "type")
		}
		seen[g.VMID] = true
	}
	return nil
}

func (s *Scenario) validateFiles() error {
	for i, f := range s.Files {
		switch {
		case !s.hasStorage(f.Storage):
			return bad(fmt.Sprintf("there is no storage %q", f.Storage), "files", i, "storage")
		case f.Host != "" && !s.hasHost(f.Host):
			return bad(fmt.Sprintf("there is no host %q", f.Host), "files", i, "host")
		case !strings.Contains(f.Name, "/"):
			return bad("a file's name begins with its content type, for example iso/debian.iso", "files", i, "name")
		}
	}
	return nil
}
