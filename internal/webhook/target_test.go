package webhook

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddressesThatAreCalled(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]struct{ always, inside bool }{
		"93.184.216.34":          {true, true},
		"8.8.8.8":                {true, true},
		"172.15.255.255":         {true, true},
		"172.32.0.1":             {true, true},
		"2606:2800:220:1::1":     {true, true},
		"::ffff:8.8.8.8":         {true, true},
		"64:ff9b::8.8.8.8":       {true, true},
		"127.0.0.1":              {false, true},
		"127.255.255.254":        {false, true},
		"10.0.0.1":               {false, true},
		"172.16.0.1":             {false, true},
		"192.168.1.1":            {false, true},
		"100.64.0.1":             {false, true},
		"100.100.100.200":        {false, true}, // metadata of Alibaba Cloud, in the range of carriers
		"::1":                    {false, true},
		"fd00:ec2::254":          {false, true}, // metadata of AWS, in the private range
		"::ffff:127.0.0.1":       {false, true},
		"::ffff:10.0.0.1":        {false, true},
		"64:ff9b::10.0.0.1":      {false, true},
		"0.0.0.0":                {false, false},
		"0.1.2.3":                {false, false},
		"169.254.169.254":        {false, false},
		"::ffff:169.254.169.254": {false, false},
		"64:ff9b::169.254.169.254": {
			false, false,
		},
		"64:ff9b:1::a00:1":      {false, false}, // NAT64 of one's own network (RFC 8215)
		"168.63.129.16":         {false, false},
		"192.0.0.192":           {false, false}, // metadata of Oracle Cloud
		"192.0.2.1":             {false, false},
		"192.88.99.1":           {false, false},
		"198.18.0.1":            {false, false},
		"198.51.100.1":          {false, false},
		"203.0.113.1":           {false, false},
		"224.0.0.1":             {false, false},
		"239.255.255.255":       {false, false},
		"240.0.0.1":             {false, false},
		"255.255.255.255":       {false, false},
		"::":                    {false, false},
		"::127.0.0.1":           {false, false},
		"fe80::1":               {false, false},
		"fe80::1%eth0":          {false, false},
		"2606:2800:220:1::1%lo": {false, false},
		"fec0::1":               {false, false},
		"ff02::1":               {false, false},
		"100::1":                {false, false},
		"2001::1":               {false, false}, // Teredo
		"2001:db8::1":           {false, false},
		"2002:7f00:1::1":        {false, false}, // 6to4 of 127.0.0.1
		"3fff::1":               {false, false},
		"5f00::1":               {false, false},
		"4000::1":               {false, false},
		"::ffff:0:127.0.0.1":    {false, false}, // translated (RFC 2765)
		"2001:0:7f00:1::7f00:1": {false, false},
		"64:ff9b::7f00:1%lo":    {false, false},
	} {
		at := netip.MustParseAddr(address)
		require.Equal(t, want.always, checkAddress(at, false) == nil, address)
		require.Equal(t, want.inside, checkAddress(at, true) == nil, address)
	}
	require.ErrorIs(t, checkAddress(netip.Addr{}, true), ErrTarget)
}

func TestGuardReadsTheAddressOfTheConnection(t *testing.T) {
	t.Parallel()
	control := guard(false)
	require.NoError(t, control("tcp4", "93.184.216.34:443", nil))
	for network, address := range map[string]string{
		"tcp4": "127.0.0.1:443", "tcp6": "[::ffff:127.0.0.1]:443", "udp4": "93.184.216.34:443", "unix": "/run/docker.sock", "tcp": "localhost:443",
	} {
		require.ErrorIs(t, control(network, address, nil), ErrTarget, "%s %s", network, address)
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]struct{ always, inside bool }{
		"https://example.com/hooks":         {true, true},
		"https://example.com:8443/h?k=v":    {true, true},
		"https://93.184.216.34/":            {true, true},
		"https://[2606:2800:220:1::1]/":     {true, true},
		"http://example.com/":               {false, true},
		"https://127.0.0.1/":                {false, true},
		"https://[::1]:8443/":               {false, true},
		"https://10.1.2.3/":                 {false, true},
		"https://[::ffff:127.0.0.1]/":       {false, true},
		"https://169.254.169.254/latest":    {false, false},
		"https://[fe80::1%25eth0]/":         {false, false},
		"https://0.0.0.0/":                  {false, false},
		"https://user@example.com/":         {false, false},
		"https://user:pass@example.com/":    {false, false},
		"https://example.com@127.0.0.1/":    {false, false},
		"https://example.com/#part":         {false, false},
		"https://example.com:0/":            {false, false},
		"https://:443/":                     {false, false},
		"https:///hooks":                    {false, false},
		"https:example.com":                 {false, false},
		"//example.com/":                    {false, false},
		"/hooks":                            {false, false},
		"":                                  {false, false},
		"ftp://example.com/":                {false, false},
		"file:///etc/passwd":                {false, false},
		"gopher://example.com/":             {false, false},
		"unix:///run/docker.sock":           {false, false},
		"https://exa mple.com/":             {false, false},
		"https://example.com/\r\nX: y":      {false, false},
		"https://example.com:99999999999/x": {false, false},
	} {
		require.Equal(t, want.always, CheckURL(raw, false) == nil, raw)
		require.Equal(t, want.inside, CheckURL(raw, true) == nil, raw)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]bool{
		"*": true, "access.*": true, "access.ended": true, "alert.webhook_endpoint_disabled": true, "a.b.c.*": true,
		"": false, "**": false, "*.ended": false, "access.": false, "access.*.x": false, "Access.ended": false, "access ended": false, ".x": false, "a%": false,
	} {
		require.Equal(t, want, ValidTopic(topic), topic)
	}
}
