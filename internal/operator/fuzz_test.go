// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// A setting accepts a value, or refuses it with what was found and what is allowed and
// keeps the one before. Setting the same again changes nothing.
func FuzzSettings(f *testing.F) {
	table := OptionTable()
	for i, option := range table {
		f.Add(i, option.Default)
	}
	for i, value := range []string{"NaN", "-1", "1e309", "9999h999999999999h", "a=1,a=2", "100,,9", "0x10", "driver=9223372036854775808", " "} {
		f.Add(i, value)
	}
	f.Fuzz(func(t *testing.T, index int, value string) {
		if index < 0 || index >= len(table) {
			return
		}
		option := table[index]
		o := DefaultOptions()
		if err := option.set(o, value); err != nil {
			if !strings.Contains(err.Error(), "found") || !strings.Contains(err.Error(), "want") {
				t.Errorf("%s=%q: the error is %q", option.Env, value, err)
			}
			if !reflect.DeepEqual(o, DefaultOptions()) {
				t.Errorf("%s=%q was refused but changed the options", option.Env, value)
			}
			return
		}
		again := DefaultOptions()
		if err := option.set(again, value); err != nil || !reflect.DeepEqual(o, again) {
			t.Errorf("%s=%s was set to another value the second time (%v)", option.Env, strconv.Quote(value), err)
		}
	})
}
