// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// CPUFlags is a list of CPU flags, each with its sign: "+aes", "-pcid".
//
// Existing manifests write it as a list or as one string, and both are accepted. No marker can express that in the schema,
// so hack/crds adds it.
type CPUFlags []string

// UnmarshalJSON decodes a list of strings, or one string of flags that are separated by semicolons, commas or spaces.
func (f *CPUFlags) UnmarshalJSON(data []byte) error {
	var list []string
	if err := json.Unmarshal(data, &list); err == nil {
		*f = list

		return nil
	}

	var scalar string
	if err := json.Unmarshal(data, &scalar); err != nil {
		return fmt.Errorf("decoding CPU flags %s (want a list like [\"+aes\"] or a string like \"+aes;-pcid\"): %w", data, err)
	}

	*f = strings.FieldsFunc(scalar, func(r rune) bool {
		return r == ';' || r == ',' || unicode.IsSpace(r)
	})

	return nil
}
