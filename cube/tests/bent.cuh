float v0;
v0 = x;
const bool v1 = x < float(0.0);
if (v1) {
const float v2 = slope * x;
v0 = v2;
} else {
v0 = v0 * slope;
v0 = v0 * slope;
const unsigned v3 = unsigned(x);
const float v4 = float(v3);
v0 = v0 + v4;
}
return v0;
