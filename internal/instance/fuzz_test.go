// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// An intent is read completely, or only its location if a newer controller wrote it, or
// not at all with an error that names annotation and Claim. What was read completely is
// written unchanged.
func FuzzReadIntent(f *testing.F) {
	files, err := filepath.Glob("testdata/formats/intent-*.json")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(raw))
	}
	for _, seed := range []string{
		`{"v":2,"region":"r","host":"h","vmid":20001,"cores":{"count":2}}`, `{"v":0}`, `null`, `[]`, ``,
		`{"v":1,"region":"r","host":"h","vmid":-1,"cores":-1,"disk":-1}`, `{"v":1e0,"region":"r","host":"h","vmid":20001}`,
		`{"v":1,"region":"r","host":"h","vmid":20001,"binding":{"cells":null,"cpus":"0-99999999999","pin":[0]}}`,
		`{"v":1,"region":"r","host":"h","vmid":20001,"network":{"interfaces":{"net0":{"address4":"::ffff:10.0.0.1/120","gateway6":"fe80::1%eth0"}}},"time":"9999-12-31T23:59:59.9999999999-23:59"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		claim := claimWithIntent(raw)
		in, ok, err := ReadIntent(claim)
		if err != nil && (!strings.Contains(err.Error(), v1alpha1.AnnotationLaunchIntent) || !strings.Contains(err.Error(), claim.Name)) {
			t.Errorf("the error names neither annotation nor Claim: %v", err)
		}
		if ok != (err == nil || errors.Is(err, ErrNewerVersion)) {
			t.Errorf("found %t with %v", ok, err)
		}
		if !ok {
			return
		}
		if in.Region == "" || in.Host == "" || in.VMID == 0 {
			t.Errorf("an intent without a location was read: %+v", in)
		}
		if location, found, err := ReadLocation(claim); !found || err != nil || location.ID() != in.ID() || location.Host != in.Host {
			t.Errorf("the location was read as %+v, %t, %v", location, found, err)
		}
		_ = in.Reservation(claim)
		if err != nil {
			if newer := (Intent{Version: in.Version, Region: in.Region, Host: in.Host, VMID: in.VMID}); !reflect.DeepEqual(in, newer) {
				t.Errorf("more than the location of a newer intent was read: %+v", in)
			}
			return
		}
		again, ok, err := ReadIntent(claimWithIntent(in.Encode()))
		if !ok || err != nil || again.Encode() != in.Encode() {
			t.Errorf("%s was written and read as %s (%v)", in.Encode(), again.Encode(), err)
		}
	})
}

// Progress can always be read, continued and written.
func FuzzReadProgress(f *testing.F) {
	f.Add(`{"phase":"Started","timeline":{"Planned":0,"Started":7.25}}`)
	f.Add(`{"phase":["Later"],"timeline":7}`)
	f.Add(`{"timeline":{"Planned":1e300,"":-1e300}}`)
	f.Fuzz(func(t *testing.T, raw string) {
		claim := claimWithIntent("")
		claim.Annotations[v1alpha1.AnnotationLaunchProgress] = raw
		p := ReadProgress(claim)
		p.Reach(PhaseStarted, 0)
		claim.Annotations[v1alpha1.AnnotationLaunchProgress] = p.Encode()
		again := ReadProgress(claim)
		if again.Encode() != p.Encode() || again.Phase != PhaseStarted {
			t.Errorf("%q was continued as %s and read as %s", raw, p.Encode(), again.Encode())
		}
	})
}
