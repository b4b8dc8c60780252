// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

var comment = regexp.MustCompile(`(?m)^ *# .*\n`)

// expectGolden compares with a file in testdata, by default that of the defaults. Comments do not matter.
// UPDATE_GOLDEN=1 updates the file.
func expectGolden(t *testing.T, name, extension string, got []byte) {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join("testdata", "golden", name+extension)
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join("testdata", "golden", "defaults"+extension)
	}
	text := strings.TrimRight(string(comment.ReplaceAll(got, nil)), "\n")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		g.Expect(os.WriteFile(path, []byte(text+"\n"), 0o600)).To(Succeed())
	}
	want, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(Equal(strings.TrimRight(string(want), "\n")))
}

func TestRender(t *testing.T) {
	t.Parallel()
	for _, name := range append([]string{"defaults"}, examples.Recipes()...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, templates := newData(t), bootdata.Templates{}
			if name != "defaults" {
				templates, data.Values = recipe(t, name)
			} else { // what other files show
				data.Kubernetes.KubeletConfiguration, data.Kubernetes.NodeTaints = bootdata.KubeletConfiguration{}, nil
			}
			files, userData := render(t, templates, data), name
			if name == "rke2" { // it differs from k3s in names and the port
				userData, files.UserData = "k3s", []byte(strings.NewReplacer("rke2", "k3s", "9345", "6443").Replace(string(files.UserData)))
			}
			expectGolden(t, userData, ".user-data", files.UserData)
			expectGolden(t, name, ".meta-data", files.MetaData)
			expectGolden(t, name, ".network-config", files.NetworkConfig)
			NewWithT(t).Expect(files.VendorData).To(BeEmpty())
		})
	}
}

// optionalValues are all values that the recipes use if they are set.
var optionalValues = map[string]string{
	"install": "v1.36.3", "installKubernetes": "v1.36", "prepared": "true", "caHash": strings.Repeat("0", 64), "cloudProvider": "external", "sshAuthorizedKeys": "ssh-ed25519 AAAA a@b\nssh-rsa BBBB c@d",
	"clusterDNS": "10.96.0.10", "clusterDomain": "example.com", "clusterName": "home", "kubernetesVersion": "v1.36.3",
	"podSubnets": "10.244.0.0/16,fd00::/56", "serviceSubnets": "10.96.0.0/12", "kubeletURL": "https://mirror.example.com/kubelet", "kubeletSHA512": strings.Repeat("0", 128),
}

func TestRenderOptionalValues(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	used := map[string]bool{}
	for _, name := range examples.Recipes() {
		templates, values := recipe(t, name)
		raw, err := examples.Files.ReadFile(name + "/secrets.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		_, documented, _ := strings.Cut(string(raw), "\n---\n")
		data := newData(t)
		data.Values = values
		for _, match := range regexp.MustCompile(`\.Values\.(\w+)`).FindAllStringSubmatch(templates.UserData, -1) {
			g.Expect(documented).To(MatchRegexp(`(?m)^  (# )?`+match[1]+`: `), "%s documents the value %s", name, match[1])
			if _, required := values[match[1]]; !required {
				g.Expect(optionalValues).To(HaveKey(match[1]))
				data.Values[match[1]], used[match[1]] = optionalValues[match[1]], true
			}
		}
		files := render(t, templates, data)
		if name != "talos" {
			g.Expect(string(files.UserData)).To(ContainSubstring("ssh-rsa BBBB c@d"), name)
		}
		g.Expect(string(files.UserData)).To(ContainSubstring("external"), name)
	}
	g.Expect(used).To(HaveLen(len(optionalValues)))
}

func TestRenderKubeadmShares(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	templates, data := recipeData(t, "kubeadm")
	data.Shares = []bootdata.Share{
		{Tag: "data", MountPath: "/mnt/data", Type: "virtiofs", Options: "defaults"},
		{Tag: "sets", MountPath: "/mnt/sets", Type: "9p", Options: "trans=virtio"},
		{Tag: "not-mounted"},
	}
	files := render(t, templates, data)
	var config struct{ Mounts [][]string }
	g.Expect(yaml.Unmarshal(files.UserData, &config)).To(Succeed())
	g.Expect(config.Mounts).To(Equal([][]string{
		{"data", "/mnt/data", "virtiofs", "defaults,nofail", "0", "0"}, {"sets", "/mnt/sets", "9p", "trans=virtio,nofail", "0", "0"},
	}))
}

func TestRenderDefaultSSHKeys(t *testing.T) {
	t.Parallel()
	data := bootdata.Data{Values: map[string]string{"SSHAuthorizedKeys": "ssh-ed25519 AAAA a@b\nssh-rsa BBBB c@d\n"}}
	NewWithT(t).Expect(string(render(t, bootdata.Templates{}, data).UserData)).To(
		MatchRegexp(`ssh_authorized_keys:\s+- "ssh-ed25519 AAAA a@b"\s+- "ssh-rsa BBBB c@d"\n`))
}

func TestRenderInterfaceWithoutAddresses(t *testing.T) {
	t.Parallel()
	for want, nic := range map[string]bootdata.Interface{"true": {}, "false": {SLAAC: true}} {
		files := render(t, bootdata.Templates{NetworkConfig: "x: {{ (index .Interfaces 0).DHCPv4 }}"},
			bootdata.Data{Network: bootdata.Network{Interfaces: []bootdata.Interface{nic}}})
		NewWithT(t).Expect(string(files.NetworkConfig)).To(Equal("x: " + want))
	}
}

func TestRenderDefaultsWithoutData(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(string(render(t, bootdata.Templates{}, bootdata.Data{}).NetworkConfig)).To(Equal("version: 2\nethernets: {}\n"))
}

func TestRenderVariables(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"{{ .Kubernetes.NodeLabels }}":                                       "karpenter.sh/nodepool=default,node.kubernetes.io/instance-type=t1.2VCPU-6GB",
		"{{ .Kubernetes.NodeTaints }}":                                       "karpenter.sh/unregistered=:NoExecute,dedicated=gpu:NoSchedule,example.com/starting=:NoExecute",
		`{{ join .Kubernetes.NodeTaints " " }}`:                              "karpenter.sh/unregistered=:NoExecute dedicated=gpu:NoSchedule example.com/starting=:NoExecute",
		"{{ range .Network.Interfaces }}{{ .Name }}:{{ .DHCPv4 }} {{ end }}": "eth0:true eth1:false eth2:true ",
		`{{ define "x" }}{{ .Zone }}{{ end }}{{ template "x" .Metadata }}`:   "pve1",

		"{{ if .Values.absent }}yes{{ else }}no{{ end }}":                               "no",
		"{{ if (and .Values.apiServer (not .Values.absent)) }}yes{{ end }}":             "yes",
		"{{ with .Values.absent }}{{ . }}{{ else }}none{{ end }}":                       "none",
		`{{ .Values.absent | default "x" }}`:                                            "x",
		`{{ default "x" .Values.apiServer }}`:                                           "https://10.0.0.1:6443",
		`{{ coalesce .Values.absent .Values.apiServer }}`:                               "https://10.0.0.1:6443",
		`{{ empty .Values.absent }}`:                                                    "true",
		`{{ get .Values "absent" }}`:                                                    "",
		`{{ hasKey .Values "absent" }}`:                                                 "false",
		`{{ range .Metadata.Tags }}{{ $.Values.absent | default "x" }}{{ end }}`:        "xx",
		`{{ range .Metadata.Tags }}{{ if $.Values.absent }}y{{ end }}{{ . }} {{ end }}`: "karpenter k8s ",
	} {
		NewWithT(t).Expect(string(render(t, bootdata.Templates{UserData: template}, newData(t)).UserData)).To(Equal(want), template)
	}
}

func TestRenderBadTemplates(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for name, test := range map[string]struct {
		templates bootdata.Templates
		want      string
	}{
		"several_documents": {bootdata.Templates{UserData: "#cloud-config\na: b\n---\nc: d"},
			`user-data: line 4: renders to several YAML documents, but cloud-init reads only files with one`},
		"several_documents_of_meta-data": {bootdata.Templates{MetaData: "a: b\n---\nc: d"},
			`meta-data: line 3: renders to several YAML documents, but cloud-init reads only files with one`},
		"missing_key": {bootdata.Templates{UserData: "a\nb: {{ .Values.apiSever }}"},
			`user-data: line 2, column 13: missing key "apiSever"; valuesRef has the keys apiServer, password`},
		"missing_key_in_condition_operand": {bootdata.Templates{UserData: `{{ if eq .Values.absent "x" }}{{ end }}`},
			`user-data: line 1, column 16: missing key "absent"; valuesRef has the keys apiServer, password`},
		"missing_key_below_$": {bootdata.Templates{UserData: `{{ range .Metadata.Tags }}{{ $.Values.absent }}{{ end }}`},
			`user-data: line 1, column 30: missing key "absent"; valuesRef has the keys apiServer, password`},
		"unknown_variable": {bootdata.Templates{UserData: "{{ .Metadata.Hostnme }}"},
			`user-data: line 1, column 12: Metadata has no field "Hostnme"`},
		"unknown_variable_at_root": {bootdata.Templates{MetaData: "x: {{ .Metadata.Hostname }}"},
			`meta-data: line 1, column 15: Metadata has no field "Metadata"`},
		"root_of_network-config": {bootdata.Templates{NetworkConfig: "{{ .Hostname }}"},
			`network-config: line 1, column 3: Network has no field "Hostname"`},
		"unknown_function": {bootdata.Templates{VendorData: "\n{{ dict }}"}, `vendor-data: line 2: function "dict" not defined`},
		"syntax":           {bootdata.Templates{UserData: "{{ if }}"}, `user-data: line 1: missing value for if`},
		"unclosed":         {bootdata.Templates{UserData: "{{ if true }}"}, `user-data: line 1: unexpected EOF`},
		"function_error": {bootdata.Templates{UserData: `{{ cidrhost .Values.password }}`},
			`user-data: line 1, column 3: cidrhost: the argument is not an address in CIDR form, for example 192.168.0.0/24`},
		"wrong_type": {bootdata.Templates{UserData: "{{ upper 3 }}"}, `user-data: line 1, column 9: wrong type of argument: expected string`},
		"wrong_number_of_arguments": {bootdata.Templates{UserData: `{{ upper "a" "b" }}`},
			`user-data: line 1, column 3: wrong number of args for upper: want 1 got 2`},
		"range_over_string": {bootdata.Templates{UserData: "{{ range .Values.password }}{{ end }}"},
			`user-data: line 1, column 16: range needs a list, a map or a number`},
		"endless_loop": {bootdata.Templates{UserData: "{{ range 9000000000 }}{{ end }}"},
			`user-data: line 1, column 9: more than 10000 loop iterations or sub-template calls`},
		"endless_recursion": {bootdata.Templates{UserData: `{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`},
			`more than 10000 loop iterations or sub-template calls`},
		"too_large": {bootdata.Templates{UserData: `{{ range 9000 }}{{ printf "%200d" 1 }}{{ end }}`},
			`user-data: renders to more than the 1048576 bytes allowed`},
		"invalid_YAML": {bootdata.Templates{UserData: "#cloud-config\na: {{ .Values.password }}\n  b: c"},
			`user-data: line 3: does not render to valid YAML: mapping values are not allowed in this context`},
		"alias": {bootdata.Templates{UserData: "#cloud-config\na: *{{ .Values.password }}"},
			`user-data: does not render to valid YAML: a value that starts with * must be quoted`},
		"not_a_mapping": {bootdata.Templates{MetaData: "just text"}, `meta-data: does not render to a YAML mapping`},
		"duplicate_key": {bootdata.Templates{UserData: "#cloud-config\nruncmd: []\npackages: []\nruncmd: []"},
			`user-data: line 4, column 1: does not render to valid YAML: duplicate key in one mapping`},
		"kubelet_config_rejected_by_Talos": {bootdata.Templates{UserData: "version: v1alpha1\nmachine:\n  kubelet:\n    extraConfig:\n      {{- .Kubernetes.KubeletConfiguration | toYaml | nindent 6 }}"},
			`user-data: line 5, column 7: Talos rejects apiVersion in machine.kubelet.extraConfig; use {{ omit .Kubernetes.KubeletConfiguration "apiVersion" "kind" | toYaml }}`},
	} {
		files, err := bootdata.Render(test.templates, newData(t))
		g.Expect(err).To(MatchError(ContainSubstring(test.want)), name)
		g.Expect(err.Error()).NotTo(ContainSubstring("hunter2"), "values are secret")
		g.Expect(files).To(Equal(bootdata.Files{}))
	}
}

func TestRenderReturnsAllErrors(t *testing.T) {
	t.Parallel()
	_, err := bootdata.Render(bootdata.Templates{UserData: "{{ .Values.a }}", MetaData: "{{ .B }}"}, bootdata.Data{})
	NewWithT(t).Expect(err).To(MatchError(And(
		ContainSubstring(`user-data: line 1, column 10: missing key "a"; valuesRef has no keys`),
		ContainSubstring(`meta-data: line 1, column 3: Metadata has no field "B"`))))
}

func TestRenderTotalTooLarge(t *testing.T) {
	t.Parallel()
	large := "#" + strings.Repeat("x", bootdata.MaxFileBytes-1)
	_, err := bootdata.Render(bootdata.Templates{UserData: large, VendorData: large, MetaData: large, NetworkConfig: "version: 2"}, bootdata.Data{})
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("the rendered files have 3145738 bytes in total, the limit is 3145728")))
}

func FuzzRender(f *testing.F) {
	for _, seed := range []string{
		"{{ .Values.a }}", `{{ range 3 }}{{ . }}{{ end }}`, `{{ .Values.a | default "x" | indent 3 }}`,
		`{{ cidrhost .Values.a 3 }}`, `{{ cidrslaac .Values.a "2001:db8::/64" }}`, `{{ toYaml . | nindent 2 }}`,
		`{{ regexFindString .Values.a "abc" 1 }}`, `{{ join (split .Values.a ",") ";" }}`, "#cloud-config\n{{ .Values.a }}",
		`{{ with $x := get .Values "a" }}{{ $x }}{{ end }}`, `{{ ternary 1 2 (hasKey .Values "a") }}`,
	} {
		f.Add(seed, "value")
	}
	f.Fuzz(func(t *testing.T, template, value string) {
		data := bootdata.Data{Values: map[string]string{"a": value}}
		files, err := bootdata.Render(bootdata.Templates{UserData: template, NetworkConfig: template}, data)
		if err != nil {
			return
		}
		if _, err := files.ISO(); err != nil {
			t.Fatal(err)
		}
	})
}
