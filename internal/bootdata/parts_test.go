// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strconv"
	"strings"
	"testing"

	ignition "github.com/coreos/ignition/v2/config"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

func part(name, userData string) bootdata.Part {
	return bootdata.Part{Name: name, Templates: bootdata.Templates{UserData: userData}}
}

// readArchive returns content types and contents of a multi-part archive.
func readArchive(g Gomega, archive []byte) (types, contents, merges []string) {
	reader := bufio.NewReader(bytes.NewReader(archive))
	header, err := textproto.NewReader(reader).ReadMIMEHeader()
	g.Expect(err).NotTo(HaveOccurred())
	kind, parameters, err := mime.ParseMediaType(header.Get("Content-Type"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kind).To(Equal("multipart/mixed"))
	parts := multipart.NewReader(reader, parameters["boundary"])
	for {
		p, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return types, contents, merges
		}
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.Header.Get("Content-Transfer-Encoding")).To(Equal("base64"))
		content, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, p))
		g.Expect(err).NotTo(HaveOccurred())
		types, contents = append(types, p.Header.Get("Content-Type")), append(contents, string(content))
		merges = append(merges, p.Header.Get("X-Merge-Type"))
	}
}

func TestRenderPartsCloudInit(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	data := bootdata.Data{Metadata: bootdata.Metadata{Hostname: "node-1"}}
	base, script := "#cloud-config\nhostname: {{ .Metadata.Hostname }}\n", "#!/bin/sh\n"+strings.Repeat("echo ü\n", 40)
	first := part("secret a/base", base)
	first.MetaData = "instance-id: first\n"
	last := part("configmap a/team", script)
	last.MetaData = "instance-id: last\n"
	files, err := bootdata.RenderParts([]bootdata.Part{first, part("secret a/empty", " \n"), last}, data)
	g.Expect(err).NotTo(HaveOccurred())
	types, contents, merges := readArchive(g, files.UserData)
	g.Expect(types).To(Equal([]string{`text/cloud-config; charset="utf-8"`, `text/x-shellscript; charset="utf-8"`}))
	g.Expect(contents).To(Equal([]string{"#cloud-config\nhostname: node-1\n", script}))
	g.Expect(merges).To(Equal([]string{"dict(recurse_array,recurse_str)+list(append)+str()", ""}))
	g.Expect(files.UserData).NotTo(ContainElement(byte('\r')))
	g.Expect(string(files.MetaData)).To(Equal("instance-id: last\n"))
	g.Expect(files.VendorData).To(BeEmpty())

	again, err := bootdata.RenderParts([]bootdata.Part{first, last}, data)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.UserData).To(Equal(files.UserData), "a part without user-data changes nothing")

	single, err := bootdata.RenderParts([]bootdata.Part{first}, data)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(single.UserData)).To(Equal(contents[0]), "one part needs no archive")
}

func TestRenderPartsIgnition(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const butane = "variant: flatcar\nversion: 1.0.0\nstorage:\n  files:\n  - {path: /etc/hostname, contents: {inline: base}}\n  - {path: /etc/base, contents: {inline: base}}\n"
	const config = `{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/hostname", "contents": {"source": "data:,{{ .Metadata.Hostname }}"}}]}}`
	files, err := bootdata.RenderParts([]bootdata.Part{part("secret a/base", butane), part("secret a/team", config)},
		bootdata.Data{Metadata: bootdata.Metadata{Hostname: "node-1"}})
	g.Expect(err).NotTo(HaveOccurred())
	merged, _, err := ignition.Parse(files.UserData)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(files.UserData)).To(ContainSubstring(`"version":"3.4.0"`), "the newest version of the parts")
	sources := map[string]string{}
	for _, f := range merged.Storage.Files {
		sources[f.Path] = *f.Contents.Source
	}
	g.Expect(sources).To(Equal(map[string]string{"/etc/hostname": "data:,node-1", "/etc/base": "data:,base"}))
}

// TestRenderPartsBlank: parts that render to nothing are ignored.
func TestRenderPartsBlank(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const (
		nothing      = "{{ if false }}x{{ end }}\n"
		cloudConfig  = "#cloud-config\nhostname: a\n"
		talos        = "machine: {}\n"
		ignitionFile = `{"ignition": {"version": "3.4.0"}}`
		butane       = "variant: flatcar\nversion: 1.0.0\n"
	)
	for name, test := range map[string]struct {
		parts []string
		want  OmegaMatcher
	}{
		"cloud-config":      {[]string{cloudConfig, nothing}, Equal(cloudConfig)},
		"first_of_two":      {[]string{nothing, cloudConfig}, Equal(cloudConfig)},
		"Talos":             {[]string{talos, nothing}, Equal(talos)},
		"Ignition":          {[]string{ignitionFile, nothing}, Equal(ignitionFile)},
		"Butane":            {[]string{nothing, butane}, ContainSubstring(`"ignition"`)},
		"Ignition_of_three": {[]string{ignitionFile, nothing, ignitionFile}, ContainSubstring(`"version":"3.4.0"`)},
		"all":               {[]string{nothing, nothing}, Equal("\n")},
	} {
		var parts []bootdata.Part
		for n, text := range test.parts {
			parts = append(parts, part("secret a/part"+strconv.Itoa(n), text))
		}
		files, err := bootdata.RenderParts(parts, bootdata.Data{})
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(string(files.UserData)).To(test.want, name)
	}
}

func TestRenderPartsErrors(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const cloudConfig = "#cloud-config\nhostname: a\n"
	for name, test := range map[string]struct {
		parts []bootdata.Part
		want  []string
	}{
		"line_in_each_part": {
			[]bootdata.Part{part("secret a/base", "#cloud-config\n\n{{ .Nothing }}\n"), part("configmap a/team", "#cloud-config\na: [\n")},
			[]string{"secret a/base: user-data: line 3, column 3: ", "configmap a/team: user-data: line "},
		},
		"Ignition_and_cloud-config": {
			[]bootdata.Part{part("secret a/base", `{"ignition": {"version": "3.4.0"}}`), part("secret a/team", cloudConfig)},
			[]string{"secret a/team: user-data: is cloud-config, and other parts are Butane or Ignition: use one of them in all parts"},
		},
		"Talos": {
			[]bootdata.Part{part("secret a/base", cloudConfig), part("secret a/team", "machine: {}\n")},
			[]string{"secret a/team: user-data: is Talos, which cannot be combined with other parts"},
		},
		"too_large": {
			[]bootdata.Part{part("secret a/base", cloudConfig), part("secret a/team", "#!/bin/sh\n"+strings.Repeat("#\n", bootdata.MaxFileBytes/2-10))},
			[]string{"user-data: all parts together have "},
		},
	} {
		_, err := bootdata.RenderParts(test.parts, bootdata.Data{})
		for _, want := range test.want {
			g.Expect(err).To(MatchError(ContainSubstring(want)), name)
		}
	}
}
