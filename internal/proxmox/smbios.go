// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/base64"
	"strings"
)

// SMBIOS is what smbios1 tells the guest's firmware tables, decoded.
//
// Proxmox replaces the whole property string on a write: read it, change fields,
// write Encode, and the inherited fields stay.
type SMBIOS struct {
	UUID         string
	Manufacturer string
	Product      string
	Version      string
	Serial       string
	SKU          string
	Family       string

	// other keeps what this version of the provider does not know.
	other Properties
}

// fields pairs each text key with its place, in the order in which we write them.
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

// ParseSMBIOS reads the value of smbios1.
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

// Encode writes the value of smbios1. Texts always go as base64: a comma or a
// blank in them would break the property string.
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

// decodeSMBIOS keeps a text that claims to be base64 and is not: losing it
// would lose it from the VM at the next write.
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
