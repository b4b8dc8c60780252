// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"

	ignition30 "github.com/coreos/ignition/v2/config/v3_0"
	ignition31 "github.com/coreos/ignition/v2/config/v3_1"
	ignition32 "github.com/coreos/ignition/v2/config/v3_2"
	ignition33 "github.com/coreos/ignition/v2/config/v3_3"
	ignition34 "github.com/coreos/ignition/v2/config/v3_4"
	ignition35 "github.com/coreos/ignition/v2/config/v3_5"
	ignition36 "github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/vcontext/report"
)

// Part is one of several sets of templates that are combined.
type Part struct {
	// Name of the object that contains the templates, for errors; empty if there is only one.
	Name string
	Templates
}

// source is the template of a file in one part.
type source struct{ part, text string }

// piece is the rendered file of one part.
type piece struct {
	source
	content []byte
}

func (s source) wrap(err error) error {
	if s.part == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s.part, err)
}

// sourcesOf returns the templates of a file in all parts, or the default if none has it. Of
// meta-data and network-config only the last counts.
func sourcesOf(parts []Part, file, fallback string) []source {
	var out []source
	for _, part := range parts {
		text := map[string]string{
			UserDataFile: part.UserData, MetaDataFile: part.MetaData, NetworkConfigFile: part.NetworkConfig, VendorDataFile: part.VendorData,
		}[file]
		if strings.TrimSpace(text) != "" {
			out = append(out, source{part.Name, text})
		}
	}
	switch {
	case len(out) == 0:
		return []source{{text: fallback}}
	case file == MetaDataFile || file == NetworkConfigFile:
		return out[len(out)-1:]
	}
	return out
}

// combine combines the pieces of a file: Ignition is merged, and the later piece wins; what
// cloud-init reads becomes a multi-part archive. Blank pieces are ignored: a part may have
// content for some VMs only.
func combine(file string, pieces []piece) ([]byte, error) {
	isBlank := func(p piece) bool { return len(bytes.TrimSpace(p.content)) == 0 }
	first := pieces[0]
	if pieces = slices.DeleteFunc(pieces, isBlank); len(pieces) == 0 {
		return first.content, nil
	}
	if len(pieces) == 1 {
		return pieces[0].content, nil
	}
	isIgnition := func(p piece) bool { return FormatOf(p.content) == FormatIgnition }
	var combined []byte
	var err error
	if slices.ContainsFunc(pieces, isIgnition) {
		combined, err = mergeIgnition(file, pieces)
	} else {
		combined, err = archive(file, pieces)
	}
	if err == nil && len(combined) > MaxFileBytes {
		err = &TemplateError{File: file, Reason: fmt.Sprintf("all parts together have %d bytes, the limit is %d", len(combined), MaxFileBytes)}
	}
	return combined, err
}

// mergeType makes cloud-init merge mappings, append to lists and replace text. Without it, a
// key of a later part would replace that of an earlier one with all that is below.
const mergeType = "dict(recurse_array,recurse_str)+list(append)+str()"

// boundary separates the parts of an archive. It is constant, so the same templates result in
// the same bytes.
const boundary = "==karpenter-boot-data=="

// archiveTypes are the formats that cloud-init combines, by their first line.
var archiveTypes = []struct{ header, contentType string }{
	{cloudConfigHeader + "-archive", "text/cloud-config-archive"},
	{cloudConfigHeader + "-jsonp", "text/cloud-config-jsonp"},
	{cloudConfigHeader, "text/cloud-config"},
	{"#!", "text/x-shellscript"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#include", "text/x-include-url"},
	{"## template: jinja", "text/jinja2"},
}

// archive returns a multi-part archive for cloud-init.
func archive(file string, pieces []piece) ([]byte, error) {
	var body bytes.Buffer
	writer := multipart.NewWriter(&body)
	if err := writer.SetBoundary(boundary); err != nil {
		return nil, err
	}
	for n, p := range pieces {
		contentType := archiveType(p.content)
		if contentType == "" {
			return nil, p.wrap(&TemplateError{File: file, Reason: "is " + string(FormatOf(p.content)) + ", which cannot be combined with other parts: " +
				"want a first line #cloud-config, #!, #cloud-boothook, #include or ## template: jinja, or Butane or Ignition in all parts"})
		}
		header := textproto.MIMEHeader{}
		header.Set("Content-Type", contentType+`; charset="utf-8"`)
		header.Set("Content-Transfer-Encoding", "base64")
		header.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="part-%03d"`, n+1))
		if contentType == "text/cloud-config" {
			header.Set("X-Merge-Type", mergeType)
		}
		part, err := writer.CreatePart(header)
		if err != nil {
			return nil, err
		}
		for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(p.content)), 76) {
			_, _ = part.Write(append(line, '\n')) // a buffer does not fail
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	head := fmt.Sprintf("Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", boundary)
	return append([]byte(head), bytes.ReplaceAll(body.Bytes(), []byte("\r\n"), []byte("\n"))...), nil
}

func archiveType(content []byte) string {
	for _, t := range archiveTypes {
		if bytes.HasPrefix(content, []byte(t.header)) {
			return t.contentType
		}
	}
	return ""
}

type ignitionMerger struct {
	version string
	merge   func([][]byte) ([]byte, error)
}

// ignitionMergers merge Ignition of a version and of those before, the oldest first.
var ignitionMergers = []ignitionMerger{
	{"3.0.0", merger(ignition30.Parse, ignition30.Merge)},
	{"3.1.0", merger(ignition31.ParseCompatibleVersion, ignition31.Merge)},
	{"3.2.0", merger(ignition32.ParseCompatibleVersion, ignition32.Merge)},
	{"3.3.0", merger(ignition33.ParseCompatibleVersion, ignition33.Merge)},
	{"3.4.0", merger(ignition34.ParseCompatibleVersion, ignition34.Merge)},
	{"3.5.0", merger(ignition35.ParseCompatibleVersion, ignition35.Merge)},
	{"3.6.0", merger(ignition36.ParseCompatibleVersion, ignition36.Merge)},
}

func merger[C any](parse func([]byte) (C, report.Report, error), merge func(C, C) C) func([][]byte) ([]byte, error) {
	return func(contents [][]byte) ([]byte, error) {
		var merged C
		for n, content := range contents {
			parsed, _, err := parse(content)
			if err != nil {
				return nil, err
			}
			if n == 0 {
				merged = parsed
			} else {
				merged = merge(merged, parsed)
			}
		}
		return json.Marshal(merged)
	}
}

// mergeIgnition merges configs with Ignition's own rules. The result has the newest version of
// the parts, so a guest that reads each of them reads the result.
func mergeIgnition(file string, pieces []piece) ([]byte, error) {
	newest := 0
	contents := make([][]byte, 0, len(pieces))
	for _, p := range pieces {
		if format := FormatOf(p.content); format != FormatIgnition {
			return nil, p.wrap(&TemplateError{File: file, Reason: fmt.Sprintf("is %s, and other parts are Butane or Ignition: use one of them in all parts", format)})
		}
		var head struct {
			Ignition struct {
				Version string `json:"version"`
			} `json:"ignition"`
		}
		if err := json.Unmarshal(p.content, &head); err != nil {
			return nil, p.wrap(&TemplateError{File: file, Reason: "the version of Ignition cannot be read"})
		}
		n := slices.IndexFunc(ignitionMergers, func(m ignitionMerger) bool { return m.version == head.Ignition.Version })
		if n < 0 {
			return nil, p.wrap(&TemplateError{File: file, Reason: fmt.Sprintf("has Ignition version %s, which cannot be merged: want %s to %s",
				head.Ignition.Version, ignitionMergers[0].version, ignitionMergers[len(ignitionMergers)-1].version)})
		}
		newest = max(newest, n)
		contents = append(contents, p.content)
	}
	merged, _, err := recoverPanic(func() ([]byte, report.Report, error) {
		out, err := ignitionMergers[newest].merge(contents)
		return out, report.Report{}, err
	})
	if err != nil {
		return nil, &TemplateError{File: file, Reason: "the parts cannot be merged: " + redactValues(err.Error())}
	}
	return merged, nil
}
