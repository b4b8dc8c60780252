// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/base64"
	"strings"
)

// SMBIOS is the decoded value of smbios1, the identity in the guest's firmware tables.
//
// Proxmox replaces the whole property string on a write. To keep inherited fields,
// parse it, change fields and write the result of Encode.
type SMBIOS struct {
	UUID         string
	Manufacturer string
	Product      string
	Version      string
	Serial       string
	SKU          string
	Family       string

	// other are properties that this version of the provider does not know.
	other Properties
}

// fields returns the text fields in the order in which Encode writes them.
func (s *SMBIOS) fields() []struct {
	key   string
	value *string
} {
	return []struct {
		key   string
		value *string
	}{
		{"manufacturer", &s.Manufacturer},
		{"product", &s.Product},
		{"version", &s.Version},
		{"serial", &s.Serial},
		{"sku", &s.SKU},
		{"family", &s.Family},
	}
}

// ParseSMBIOS parses the value of smbios1.
func ParseSMBIOS(value string) SMBIOS {
	properties := ParseProperties(value)
	encoded := isTrue(properties.Value("base64"))
	s := SMBIOS{UUID: properties.Value("uuid")}
	known := []string{"uuid", "base64"}
	for _, field := range s.fields() {
		*field.value = decodeSMBIOS(properties.Value(field.key), encoded)
		known = append(known, field.key)
	}
	s.other = properties.Without(known...)
	return s
}

// Encode returns the value of smbios1. Texts are always encoded as base64, since a
// comma or a blank would break the property string.
func (s SMBIOS) Encode() string {
	var properties Properties
	if s.UUID != "" {
		properties = append(properties, Property{Key: "uuid", Value: s.UUID})
	}
	texts := false
	for _, field := range s.fields() {
		if *field.value == "" {
			continue
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(*field.value))
		properties = append(properties, Property{Key: field.key, Value: encoded})
		texts = true
	}
	if texts {
		properties = append(properties, Property{Key: "base64", Value: "1"})
	}
	return append(properties, s.other...).Encode()
}

// decodeSMBIOS returns a text unchanged if it is marked as base64 but is not valid:
// otherwise the next write would remove it from the VM.
func decodeSMBIOS(value string, encoded bool) string {
	if !encoded {
		return value
	}
	text, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		text, err = base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	}
	if err != nil {
		return value
	}
	return string(text)
}
