// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
)

func load(t *testing.T, version string) *Catalog {
	t.Helper()
	c, err := Load(version)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

func TestFind(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		c := load(t, version)
		m, values := c.Find("GET", "/nodes/pve1/storage/local/content/local:iso/x.iso")
		NewWithT(t).Expect(m).NotTo(BeNil(), version)
		NewWithT(t).Expect(values).To(HaveKeyWithValue("volume", "local:iso/x.iso"), version)
	}
}

func TestValidateErrorTexts(t *testing.T) {
	t.Parallel()
	c := load(t, "8.4")
	const create = "POST /nodes/{node}/qemu"
	for _, tc := range []struct{ method, param, value, want string }{
		{create, "vmid", "99", "invalid format - value does not look like a valid VM ID\n"},
		{create, "vmid", "x", "type check ('integer') failed - got 'x'"},
		{create, "onboot", "yes", "type check ('boolean') failed - got 'yes'"},
		{create, "cores", "0", "value must have a minimum value of 1"},
		{create, "cpuunits", "300000", "value must have a maximum value of 262144"},
		{create, "memory", "1", "invalid format - format error\nmemory.current: value must have a minimum value of 16\n"},
		{create, "name", "bad_name", "invalid format - value does not look like a valid DNS name\n"},
		{create, "tags", "a!b", "invalid format - invalid characters in tag\n"},
		{create, "net0", "virtio,bridge=bad/bridge", "invalid format - format error\nnet0.bridge: invalid format - invalid bridge ID 'bad/bridge'\n\n"},
		{create, "net0", "virtio,tag=5000", "invalid format - format error\nnet0.tag: value must have a maximum value of 4094\n"},
		{create, "ipconfig0", "gw=10.0.0.1", "invalid format - format error\nipconfig0.ip: missing property - 'ipconfig0.gw' requires this property\n"},
		{create, "cpu", "nosuch", "invalid format - Built-in cputype 'nosuch' is not defined (missing 'custom-' prefix?)\n"},
		{create, "affinity", "a-b", "invalid format - unable to parse cpuset option\n"},
		{create, "scsi0", "local:1,foo=1", "invalid format - format error\nscsi0.foo: property is not defined in schema and the schema does not allow additional properties\n"},
		{create, "scsi31", "local:1", "property is not defined in schema and the schema does not allow additional properties"},
		{create, "description", strings.Repeat("x", 9000), "value may only be 8192 characters long"},
		{"POST /nodes/{node}/storage/{storage}/upload", "content", "snippets", "value 'snippets' does not have a value in the enumeration 'iso, vztmpl, import'"},
		{"POST /nodes/{node}/storage/{storage}/download-url", "url", "ftp://x/y", "value does not match the regex pattern"},
	} {
		params := &Params{Values: map[string]string{tc.param: tc.value}}
		NewWithT(t).Expect(c.Validate(c.Method(tc.method), params)[tc.param]).To(Equal(tc.want), "%s=%.40q", tc.param, tc.value)
	}
}

func TestValidateMissingParams(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for version, text := range map[string]string{
		"8.4": "missing property - 'checksum' requires this property", "9.2": "missing property required by 'checksum'",
	} {
		c := load(t, version)
		m := c.Method("POST /nodes/{node}/storage/{storage}/download-url")
		errs := c.Validate(m, &Params{Values: map[string]string{"node": "pve1", "storage": "local", "content": "iso", "filename": "a.iso", "checksum": "00"}})
		g.Expect(errs).To(Equal(Errors{"checksum-algorithm": text, "url": "property is missing and it is not optional"}), version)
	}
}

// sample returns a random value that matches a property.
func sample(r *rand.Rand, p *Property) (string, bool) {
	switch {
	case p.Enum != nil:
		return p.Enum[r.IntN(len(p.Enum))], true
	case p.Fields != nil || p.Format != "" || p.Pattern != "":
		return "", false
	case p.Type == "boolean":
		return fmt.Sprint(r.IntN(2)), true
	case p.Type == "integer" || p.Type == "number":
		low := ptr.Deref(p.Minimum, 0)
		high := ptr.Deref(p.Maximum, low+1000)
		return fmt.Sprint(int64(low + r.Float64()*(high-low))), true
	case p.Type == "string":
		n := max(3, ptr.Deref(p.MinLength, 0))
		return strings.Repeat("a", min(n, ptr.Deref(p.MaxLength, n))), true
	}
	return "", false
}

// spoil returns a random value that does not match a property.
func spoil(r *rand.Rand, p *Property) (string, bool) {
	switch {
	case p.Type == "boolean":
		return []string{"yes", "true", "2", ""}[r.IntN(4)], true
	case p.Type == "integer":
		return []string{"x", "1.5", "0x10", "--1"}[r.IntN(4)], true
	case p.Type == "number":
		return "many", true
	case p.Enum != nil:
		return "not-in-the-list", true
	case p.MaxLength != nil && p.Format == "" && p.Pattern == "":
		return strings.Repeat("a", *p.MaxLength+1), true
	}
	return "", false
}

func TestValidateRandomParams(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		c := load(t, version)
		r := rand.New(rand.NewPCG(7, 7))
		for _, name := range c.Names() {
			for range 40 {
				checkRandom(t, c, c.Method(name), r)
			}
		}
	}
}

func checkRandom(t *testing.T, c *Catalog, m *Method, r *rand.Rand) {
	t.Helper()
	params := &Params{Values: map[string]string{}}
	broken := ""
	for name, p := range m.Params {
		if strings.HasSuffix(name, "[n]") || p.Requires != "" {
			continue
		}
		switch {
		case broken == "" && r.IntN(10) == 0:
			if v, ok := spoil(r, p); ok {
				params.Values[name], broken = v, name
			}
		case r.IntN(3) == 0:
			if v, ok := sample(r, p); ok {
				params.Values[name] = v
			}
		}
	}
	if broken == "" && r.IntN(4) == 0 {
		broken = "no-such-parameter"
		params.Values[broken] = "1"
	}
	errs := c.Validate(m, params)
	if broken != "" && errs[broken] == "" {
		t.Errorf("%s %s: %s=%q was accepted", c.Version, m.Name(), broken, params.Values[broken])
	}
	for k, text := range errs {
		_, wasGiven := params.Values[k]
		missing := !wasGiven && text == "property is missing and it is not optional"
		if k != broken && !missing {
			t.Errorf("%s %s: %s=%q was rejected: %s", c.Version, m.Name(), k, params.Values[k], text)
		}
	}
}

func FuzzValidate(f *testing.F) {
	for _, seed := range []string{"virtio,bridge=vmbr0", "=,=,", "model=virtio,model=e1000", "a=b=c", "\x00,;"} {
		f.Add(seed)
	}
	c, err := Load("9.2")
	if err != nil {
		f.Fatal(err)
	}
	m := c.Method("PUT /nodes/{node}/qemu/{vmid}/config")
	f.Fuzz(func(t *testing.T, v string) {
		for _, param := range []string{"net0", "scsi0", "memory", "smbios1", "ipconfig0", "tags", "boot", "cpu", "delete", "sshkeys"} {
			errs := c.Validate(m, &Params{Values: map[string]string{"node": "a", "vmid": "100", param: v}})
			if text, bad := errs[param]; bad && text == "" {
				t.Errorf("%s=%q: rejected without a text", param, v)
			}
		}
	})
}

func TestEmbeddedSchema(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	dir := os.Getenv("PVE_REFERENCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "reference")
	}
	served, err := os.ReadFile("served.txt")
	g.Expect(err).NotTo(HaveOccurred())
	for _, version := range []string{"8.4", "9.2"} {
		tree, err := os.ReadFile(filepath.Join(dir, "pve-schema-"+version+".json"))
		if err != nil {
			t.Skipf("published schema not available, set PVE_REFERENCE to its directory: %v", err)
		}
		want, err := Compact(version, tree, string(served))
		g.Expect(err).NotTo(HaveOccurred())
		got, err := os.ReadFile("methods-" + version + ".json")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(want), "methods-%s.json does not match the published schema; run go run ./pvesim/internal/schema/gen", version)
	}
}
