// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

func TestRenderButaneVendorData(t *testing.T) {
	t.Parallel()
	files := render(t, bootdata.Templates{VendorData: "variant: flatcar\nversion: 1.1.0\n"}, newData(t))
	NewWithT(t).Expect(json.Valid(files.VendorData)).To(BeTrue())
}

func TestRenderIgnition(t *testing.T) {
	t.Parallel()
	const config = `{"ignition":{"version":"3.4.0"},"systemd":{"units":[{"name":"{{ .Metadata.Hostname }}.service","enabled":true}]}}`
	files := render(t, bootdata.Templates{UserData: config}, newData(t))
	NewWithT(t).Expect(string(files.UserData)).To(Equal(strings.ReplaceAll(config, "{{ .Metadata.Hostname }}", "default-x7k2p")))
}

func TestFormatOf(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]bootdata.Format{
		"#cloud-config\nvariant: fcos":                            bootdata.FormatCloudConfig,
		"#cloud-config-archive\n- type: text/cloud-config":        bootdata.FormatOther,
		"#cloud-config-jsonp\n[]":                                 bootdata.FormatOther,
		"# my nodes\nvariant: fcos\nversion: 1.6.0":               bootdata.FormatButane,
		"\n  {\"ignition\": {}}":                                  bootdata.FormatIgnition,
		"version: v1alpha1\nmachine:\n  type: worker":             bootdata.FormatTalos,
		"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x": bootdata.FormatTalos,
		"#!/bin/sh\nvariant: x":                                   bootdata.FormatOther,
		"Content-Type: multipart/mixed\nmachine:":                 bootdata.FormatOther,
		"": bootdata.FormatOther,
	} {
		NewWithT(t).Expect(bootdata.FormatOf([]byte(content))).To(Equal(want), content)
	}
}

// badIgnition maps user-data to the expected error. Lines and columns are those of the
// template, although most errors are in the rendered file.
var badIgnition = map[string]string{
	"# three\n{{ range .Metadata.Tags }}# {{ . }}\n{{ end }}variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n    - path: relative": `user-data: line 7, column 13: Butane, at $.storage.files.0.path: path not absolute`,
	"variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n    - path: /a\n      contnets:\n        inline: x":                          `user-data: line 6, column 7: Butane: there is no key "contnets" here`,
	"variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n    - path: /a\n      mode: {{ .Values.password }}":                          "user-data: line 6: does not render to valid YAML: cannot unmarshal !!str … into int",
	"variant: fcos\nversion: 1.6.0\n{{ .Values.password }}: 1":                                                                       `user-data: line 3, column 1: Butane: a value is used as a key`,
	"variant: fcos\nversion: 1.6.0\n  a: b: c":                                                                                       `user-data: line 3: does not render to valid YAML: mapping values are not allowed in this context`,
	"variant: fcos\nversion: 9.9.9":            `user-data: Butane: No translator exists for variant fcos with version 9.9.9`,
	"variant: fcos":                            `user-data: Butane: error parsing version; must be a valid semver`,
	"# x\nvariant: openshift\nversion: 4.18.0": `user-data: line 2: Butane's variant must be fcos or flatcar`,
	"variant: fcos\nversion: 1.6.0\nstorage:\n  files:\n    - path: /a\n      contents:\n        local: /etc/passwd": `Butane, at $.storage.files.0.contents.local: local file paths are relative to a files directory`,
	"variant: flatcar\nversion: 1.1.0\nsystemd:\n  units:\n    - name: kubelet":                                      `user-data: line 5, column 13: Butane, at $.systemd.units.0.name: invalid systemd unit extension`,
	"{\"ignition\": {\"version\": \"3.4.0\"},\n \"storage\": {\"files\": [{\"path\": \"{{ .Values.password }}\"}]}}": `user-data: line 2, column 33: Ignition, at $.storage.files.0.path: path not absolute`,
	"{\"ignition\": {\"version\": \"3.4.0\"},\n \"storag\": {}}":                                                     `user-data: line 2, column 2: Ignition: there is no key "storag" here`,
	"{\"ignition\": {\"version\": \"2.3.0\"}}":                                                                       `user-data: Ignition: unsupported config version`,
	"{\"ignition\": {\"version\": \"3.4.0\"},\n":                                                                     `user-data: line 2: Ignition: unexpected end of JSON input`,
	"{\"ignition\": {\"version\": 42}}":                                                                              `Ignition: json: cannot unmarshal number into Go struct field`,
}

func TestRenderBadIgnition(t *testing.T) {
	t.Parallel()
	for template, want := range badIgnition {
		_, err := bootdata.Render(bootdata.Templates{UserData: template}, newData(t))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(want)))
		NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
	}
}

func TestRenderButaneTooLarge(t *testing.T) {
	t.Parallel()
	// Each < becomes six characters in JSON.
	data := newData(t)
	data.Values["noise"] = strings.Repeat("# "+strings.Repeat("<", 1000)+"\n", 200)
	_, err := bootdata.Render(bootdata.Templates{
		UserData: "variant: fcos\nversion: 1.6.0\nsystemd:\n  units:\n    - name: a.service\n      contents: |\n{{ .Values.noise | indent 8 }}\n",
	}, data)
	NewWithT(t).Expect(err).To(MatchError(MatchRegexp(`user-data: becomes 12\d{5} bytes of Ignition, the limit is 1048576`)))
}

// FuzzErrorsContainNoSecret inserts a value into all formats.
func FuzzErrorsContainNoSecret(f *testing.F) {
	for template := range badIgnition {
		f.Add(template, "x")
	}
	f.Add("#cloud-config\nruncmd: [{{ .Values.password }}]\n{{ .Values.password }}", "\n*")
	f.Add("version: v1alpha1\nmachine: {{ .Values.password }}", "\t")
	f.Fuzz(func(t *testing.T, template, around string) {
		const secret = "s3cr3tmark"
		if strings.Contains(template, secret) || strings.Contains(around, secret) {
			return
		}
		data := bootdata.Data{Values: map[string]string{"password": around + secret + around}}
		files, err := bootdata.Render(bootdata.Templates{UserData: template, VendorData: template, NetworkConfig: template}, data)
		if err != nil {
			if text := fmt.Sprint(err); strings.Contains(text, secret) {
				t.Fatalf("the error contains a value: %s", text)
			}
			return
		}
		if _, err := files.ISO(); err != nil {
			t.Fatal(err)
		}
	})
}
