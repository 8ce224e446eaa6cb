const float v0 = x / limit;
const float v1 = tanh(v0);
const float v2 = limit * v1;
return v2;
