// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"
)

// splitArchive returns the parts of user-data: one, unless it is a multi-part archive.
func splitArchive(userData []byte) ([][]byte, error) {
	if !bytes.HasPrefix(userData, []byte("Content-Type:")) {
		return [][]byte{userData}, nil
	}
	reader := bufio.NewReader(bytes.NewReader(userData))
	header, err := textproto.NewReader(reader).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	kind, parameters, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "multipart/mixed" {
		return nil, errors.New("it is not multipart/mixed")
	}
	var parts [][]byte
	archive := multipart.NewReader(reader, parameters["boundary"])
	for {
		part, err := archive.NextRawPart()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		var body io.Reader = part
		if strings.EqualFold(part.Header.Get("Content-Transfer-Encoding"), "base64") {
			body = base64.NewDecoder(base64.StdEncoding, part)
		}
		content, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		parts = append(parts, content)
	}
}

// merge adds the values of a later part as cloud-init does with the merge type
// dict(recurse_array,recurse_str)+list(append)+str(): lists are appended, text is replaced.
func (c cloudConfig) merge(later cloudConfig) cloudConfig {
	if later.Hostname != "" {
		c.Hostname = later.Hostname
	}
	if later.FQDN != "" {
		c.FQDN = later.FQDN
	}
	c.WriteFiles = append(c.WriteFiles, later.WriteFiles...)
	c.BootCmd = append(c.BootCmd, later.BootCmd...)
	c.RunCmd = append(c.RunCmd, later.RunCmd...)
	return c
}
